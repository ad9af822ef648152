package archive

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"time"
)

// File is one entry of a layer. The type bits of its mode make it a regular file, a folder or a
// symbolic link.
type File struct {
	// Path begins without a slash: etc/passwd.
	Path string
	Mode fs.FileMode
	// Owner is both the user and the group.
	Owner int
	// Data is the content of a regular file.
	Data []byte
	// Link is the target of a symbolic link.
	Link string
}

// Folder returns a folder that all users may read.
func Folder(path string) File { return File{Path: path, Mode: fs.ModeDir | 0o755} }

// Link returns a symbolic link.
func Link(path, to string) File { return File{Path: path, Mode: fs.ModeSymlink | 0o777, Link: to} }

// Regular returns a file that all users may read.
func Regular(path string, data []byte) File { return File{Path: path, Mode: 0o644, Data: data} }

// Program returns a file that all users may run.
func Program(path string, data []byte) File { return File{Path: path, Mode: 0o755, Data: data} }

// header returns the entry's header, which does not depend on the current user or time.
func (f File) header() (*tar.Header, error) {
	h := &tar.Header{Name: f.Path, Mode: int64(f.Mode.Perm()), Uid: f.Owner, Gid: f.Owner, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if f.Mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch f.Mode.Type() {
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Data))
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
	default:
		return nil, fmt.Errorf("%s is neither a file, a folder nor a symbolic link: %s", f.Path, f.Mode)
	}
	return h, nil
}

// sortFiles sorts a layer's files and adds their parent folders, unless the layer has them itself.
func sortFiles(files []File) ([]File, error) {
	known := map[string]File{}
	for _, f := range files {
		if f.Path == "." || !fs.ValidPath(f.Path) {
			return nil, fmt.Errorf("%q is no path in an image: it begins without a slash and has no dots", f.Path)
		}
		if _, twice := known[f.Path]; twice {
			return nil, fmt.Errorf("%s is twice in a layer", f.Path)
		}
		known[f.Path] = f
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			above, said := known[dir]
			if said && !above.Mode.IsDir() {
				return nil, fmt.Errorf("%s is below %s, which is not a folder", f.Path, dir)
			}
			if !said {
				known[dir] = Folder(dir)
			}
		}
	}
	all := make([]File, 0, len(known))
	for _, f := range known {
		all = append(all, f)
	}
	// A folder comes before its contents, because its path is shorter.
	slices.SortFunc(all, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}
