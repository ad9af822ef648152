package transfer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"tidemill.dev/api"
)

// Get writes files below a folder. A file is read-only if it is a link to the cache or a copy from
// the cache. A repeated Get continues: it keeps existing files that are correct.
func (c *Client) Get(ctx context.Context, dir string, files []api.File, count Count) error {
	g := &download{transfer: c.carrying(count), dir: dir, crew: newCrew(ctx, c.ways()), folders: map[string]bool{}}
	if err := g.begin(); err != nil {
		return fmt.Errorf("get %d files: %w", len(files), err)
	}
	err := g.crew.wait(g.all(files))
	g.removeDrafts()
	return err
}

// download is one call of Get.
type download struct {
	*transfer
	dir     string
	cache   *cache // cache of files, or nil
	crew    *workerPool
	folders map[string]bool // folders that exist

	mu    sync.Mutex
	drops map[*draft]bool // unfinished drafts
}

func (g *download) begin() (err error) {
	g.drops = map[*draft]bool{}
	if err = os.MkdirAll(g.dir, 0o777); err == nil && g.Cache != "" {
		g.cache, err = openCache(g.Cache)
	}
	return err
}

func (g *download) all(files []api.File) error {
	for i := range files {
		if err := g.startFile(&files[i]); err != nil {
			return fmt.Errorf("get %s: %w", files[i].Path, err)
		}
	}
	return nil
}

// startFile creates a file's folder and starts to get the file.
func (g *download) startFile(f *api.File) error {
	name := filepath.FromSlash(f.Path)
	if !filepath.IsLocal(name) || name == "." {
		return errors.New("its path is not below the folder")
	}
	for _, p := range partsOf(f) {
		if len(p.Digest) != sha256.Size*2 {
			return fmt.Errorf("%q is not a digest", p.Digest)
		}
	}
	at := filepath.Join(g.dir, name)
	if folder := filepath.Dir(at); !g.folders[folder] {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return err
		}
		g.folders[folder] = true
	}
	if len(f.Parts) == 0 {
		g.crew.start(func(ctx context.Context) error { return g.getSmall(ctx, f, at) })
		return nil
	}
	return g.getLarge(f, at)
}

// getSmall gets a file that is one object.
func (g *download) getSmall(ctx context.Context, f *api.File, at string) error {
	d, err := g.newDraft(ctx, f, at)
	if err != nil || d == nil {
		return err
	}
	return g.writePart(ctx, d, api.Part{Digest: f.Digest, Size: f.Size}, 0)
}

// getLarge gets the parts of a file, several in parallel.
func (g *download) getLarge(f *api.File, at string) error {
	d, err := g.newDraft(g.crew.ctx, f, at)
	if err != nil || d == nil {
		return err
	}
	offset := int64(0)
	for _, p := range f.Parts {
		from := offset
		g.crew.start(func(ctx context.Context) error { return g.writePart(ctx, d, p, from) })
		offset += p.Size
	}
	return nil
}

// newDraft creates a draft of a file; nil if the file exists already or comes from the cache.
func (g *download) newDraft(ctx context.Context, f *api.File, at string) (*draft, error) {
	there, err := g.isThere(ctx, f, at)
	if err == nil && !there && g.cache != nil {
		there, err = g.cache.placeCached(f, at)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", f.Path, err)
	}
	if there {
		g.tally.add(1, f.Size)
		return nil, nil
	}
	d, err := newDraft(f, at, g.cache)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", f.Path, err)
	}
	g.mu.Lock()
	g.drops[d] = true
	g.mu.Unlock()
	return d, nil
}

// isThere reports whether the right file exists already. A wrong one is an error unless it may be
// replaced.
func (g *download) isThere(ctx context.Context, f *api.File, at string) (bool, error) {
	info, err := os.Lstat(at)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode().IsRegular() && info.Size() == f.Size && hasContent(ctx, at, f) {
		return !g.Replace || info.Mode()&0o100 != 0 == f.Executable, nil
	}
	if info.IsDir() || !g.Replace {
		return false, fmt.Errorf("%s is there and is not that file: get into another folder, or remove it", at)
	}
	return false, nil
}

// hasContent reports whether a file has the right content.
func hasContent(ctx context.Context, at string, f *api.File) bool {
	in, err := os.Open(at)
	if err != nil {
		return false
	}
	defer in.Close()
	var is api.File
	return digestFile(ctx, in, &is, make([]byte, min(readSize, f.Size+1))) == nil && is.Digest == f.Digest
}

// writePart writes an object into its place, and finishes the file if that was the last object.
func (g *download) writePart(ctx context.Context, d *draft, p api.Part, at int64) error {
	err := g.sendWithRetry(ctx, request{method: http.MethodGet, url: g.Base + "/object?" + url.Values{"digest": {p.Digest}}.Encode(),
		take: func(r io.Reader) error { return d.writeObject(r, p, at) }})
	last := err == nil && d.left.Add(-1) == 0
	if last {
		err = d.finish(g.cache)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", d.file.Path, err)
	}
	files := 0
	if last {
		files = 1
		g.mu.Lock()
		delete(g.drops, d)
		g.mu.Unlock()
	}
	g.tally.add(files, p.Size)
	g.moved.add(files, p.Size)
	return nil
}

// removeDrafts removes unfinished drafts.
func (g *download) removeDrafts() {
	for d := range g.drops {
		d.drop()
	}
}

// cache is a folder of downloaded files, named by their content. Several processes may use it: a
// file appears in it only when it is complete, and is never changed.
//
// Users of the cache get links to its files. The files are read-only, but root can write to them
// anyway. So all files have the same time, and a file with another time was changed and is
// downloaded again.
type cache struct{ dir string }

const staleAfter = 24 * time.Hour // age at which a draft has no live owner

// stamp returns the time of all files in the cache.
func stamp() time.Time { return time.Unix(1_000_000_000, 0) }

func openCache(dir string) (*cache, error) {
	dir, err := filepath.Abs(dir)
	c := &cache{dir}
	if err == nil {
		err = os.MkdirAll(c.drafts(), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("open the cache: %w", err)
	}
	c.clean(time.Now())
	return c, nil
}

func (c *cache) drafts() string { return filepath.Join(c.dir, "drafts") }

// clean removes unfinished files of killed processes.
func (c *cache) clean(now time.Time) {
	all, err := os.ReadDir(c.drafts())
	if err != nil {
		return // creating a draft reports the error
	}
	for _, e := range all {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(c.drafts(), e.Name())) // another process may have removed it
		}
	}
}

// path returns the path of a file in the cache. A file with parts is named by its parts, because
// they are verified; the digest of the whole is not.
func (c *cache) path(f *api.File) string {
	digest, suffix := f.Digest, ""
	if len(f.Parts) > 0 {
		h := sha256.New()
		for _, p := range f.Parts {
			fmt.Fprintf(h, "%s %d\n", p.Digest, p.Size)
		}
		digest, suffix = sum(h), ".parts"
	}
	if f.Executable {
		suffix += ".x"
	}
	return filepath.Join(c.dir, "files", digest[:2], digest+suffix)
}

// placeCached puts a cached file at its place.
func (c *cache) placeCached(f *api.File, at string) (bool, error) {
	kept := c.path(f)
	info, err := os.Lstat(kept)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.Mode().IsRegular() || info.Size() != f.Size || !info.ModTime().Equal(stamp()):
		return false, nil
	}
	err = linkOrCopy(kept, at)
	if errors.Is(err, os.ErrNotExist) { // another process has removed the cached file
		return false, nil
	}
	return err == nil, err
}

// addFile moves a complete file into the cache and puts it at its place. It sets the time last: a
// draft with that time would look old to a process that cleans up.
func (c *cache) addFile(f *api.File, draft, at string) error {
	mode := os.FileMode(0o444)
	if f.Executable {
		mode = 0o555
	}
	kept := c.path(f)
	if err := errors.Join(os.Chmod(draft, mode), os.MkdirAll(filepath.Dir(kept), 0o700)); err != nil {
		return err
	}
	if err := linkOrCopy(draft, at); err != nil {
		return err
	}
	if err := os.Rename(draft, kept); err != nil {
		return err
	}
	return os.Chtimes(kept, stamp(), stamp())
}

// linkOrCopy links a file, or copies it if the file system cannot link.
func linkOrCopy(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	err := os.Link(from, to)
	if err == nil || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) {
		return err
	}
	return duplicate(from, to)
}

func duplicate(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := create(filepath.Dir(to), 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Chmod(info.Mode().Perm()), out.Close()); err == nil {
		err = errors.Join(os.Chtimes(out.Name(), stamp(), stamp()), os.Rename(out.Name(), to))
	}
	if err != nil {
		_ = os.Remove(out.Name()) // fails if the file was renamed
	}
	return err
}
