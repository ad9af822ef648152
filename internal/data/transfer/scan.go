package transfer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"tidemill.dev/api"
)

// Scan lists the files below a folder, by path, with their digests. It follows links within the
// folder. A link that leads out of the folder, or an entry that is not a file, is an error.
func Scan(ctx context.Context, dir string, count Count) ([]api.File, error) {
	return scan(ctx, dir, count, func(s *folderScan) error { return s.scanFolder(".", false) })
}

// ScanFile is like Scan, for one file of a folder.
func ScanFile(ctx context.Context, dir, name string, count Count) ([]api.File, error) {
	return scan(ctx, dir, count, func(s *folderScan) error { return s.followLink(name, true) })
}

// folderScan is one scan of a folder.
type folderScan struct {
	root  *os.Root
	crew  *workerPool
	tally tally
	files []*api.File

	buffers sync.Pool // pool of *[readSize]byte
}

func scan(ctx context.Context, dir string, count Count, walk func(*folderScan) error) ([]api.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder: %w", err)
	}
	defer root.Close()
	s := &folderScan{root: root, crew: newCrew(ctx, min(runtime.GOMAXPROCS(0), 8)), tally: tally{count: count}}
	if err := s.crew.wait(walk(s)); err != nil {
		return nil, err
	}
	all := make([]api.File, len(s.files))
	for i, f := range s.files {
		all[i] = *f
	}
	slices.SortFunc(all, func(a, b api.File) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

// scanFolder scans a folder. If a link led to it (linked), a link to a folder below it is refused,
// because such a link may lead back.
func (s *folderScan) scanFolder(name string, linked bool) error {
	d, err := s.root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		some, err := d.ReadDir(1000)
		for _, e := range some {
			if err := s.one(path.Join(name, e.Name()), e.Type(), linked); err != nil {
				return err
			}
		}
		if len(some) == 0 {
			return ended(err)
		}
	}
}

func (s *folderScan) one(name string, kind fs.FileMode, linked bool) error {
	switch {
	case !utf8.ValidString(name):
		return fmt.Errorf("the name %q is not UTF-8: rename the file", name)
	case strings.HasPrefix(path.Base(name), draftName):
		return nil
	case kind.IsDir():
		return s.scanFolder(name, linked)
	case kind&fs.ModeSymlink != 0:
		return s.followLink(name, linked)
	}
	return s.scanEntry(name, kind)
}

// followLink follows a link. The root refuses a link that leads out of the folder.
func (s *folderScan) followLink(name string, linked bool) error {
	info, err := s.root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is a link to nothing: remove it", name)
	case err != nil:
		return fmt.Errorf("%s is a link to a place outside the folder, or is broken: replace it by its target (%w)", name, err)
	case info.IsDir() && linked:
		return fmt.Errorf("%s is a link to a folder, below another such link: replace it by its target", name)
	case info.IsDir():
		return s.scanFolder(name, true)
	}
	return s.scanEntry(name, info.Mode().Type())
}

// scanEntry starts to read a file. It opens regular files only, because opening a pipe would block.
func (s *folderScan) scanEntry(name string, kind fs.FileMode) error {
	if !kind.IsRegular() {
		return fmt.Errorf("%s is %s, and only files can be kept: remove it", name, kindOf(kind))
	}
	f := &api.File{Path: name}
	s.files = append(s.files, f)
	s.crew.start(func(ctx context.Context) error { return s.readFile(ctx, f) })
	return context.Cause(s.crew.ctx)
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsDir():
		return "a folder"
	}
	return "no file"
}

const readSize = 256 << 10

// readFile computes the digests of a file.
func (s *folderScan) readFile(ctx context.Context, f *api.File) error {
	in, mode, err := openFile(s.root, f.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	f.Executable = mode&0o111 != 0
	buffer, _ := s.buffers.Get().(*[readSize]byte)
	if buffer == nil {
		buffer = new([readSize]byte)
	}
	defer s.buffers.Put(buffer)
	if err := digestFile(ctx, in, f, buffer[:]); err != nil {
		return fmt.Errorf("read %s: %w", f.Path, err)
	}
	s.tally.add(1, f.Size)
	return nil
}

// digestFile fills in the size and digests of a file. In a file with parts each byte is hashed twice,
// for the part and for the whole.
func digestFile(ctx context.Context, in io.Reader, f *api.File, buffer []byte) error {
	whole, err := fileHasher{whole: sha256.New(), buffer: buffer}, error(nil)
	if f.Size, err = whole.upTo(ctx, in, api.PartSize); err != nil {
		return err
	}
	if f.Size == api.PartSize { // there may be more parts; so far the first part's digest is also the file's
		f.Parts = []api.Part{{Digest: sum(whole.whole), Size: api.PartSize}}
		err = whole.readParts(ctx, in, f)
	}
	f.Digest = sum(whole.whole)
	if len(f.Parts) == 1 {
		f.Parts = nil
	}
	return err
}

// fileHasher computes the digests of a file and of its current part.
type fileHasher struct {
	whole, part hash.Hash // part may be nil
	buffer      []byte
}

// readParts reads the second part and all later parts.
func (h *fileHasher) readParts(ctx context.Context, in io.Reader, f *api.File) error {
	for n := int64(api.PartSize); n == api.PartSize; {
		var err error
		h.part = sha256.New()
		if n, err = h.upTo(ctx, in, api.PartSize); err != nil {
			return err
		}
		if n > 0 {
			f.Parts = append(f.Parts, api.Part{Digest: sum(h.part), Size: n})
			f.Size += n
		}
	}
	return nil
}

// upTo reads at most the given number of bytes.
func (h *fileHasher) upTo(ctx context.Context, in io.Reader, most int64) (n int64, err error) {
	for n < most && ctx.Err() == nil {
		k, err := in.Read(h.buffer[:min(int64(len(h.buffer)), most-n)])
		h.whole.Write(h.buffer[:k])
		if h.part != nil {
			h.part.Write(h.buffer[:k])
		}
		n += int64(k)
		if err != nil {
			return n, ended(err)
		}
	}
	return n, context.Cause(ctx)
}

func sum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// openFile opens a file beneath a root. The file may have become a pipe, and opening a pipe would
// block.
func openFile(root *os.Root, name string) (*os.File, os.FileMode, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|nonBlocking, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is %s by now", name, kindOf(info.Mode()))
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Mode(), nil
}
