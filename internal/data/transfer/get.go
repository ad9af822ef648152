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

// Get lays files down below a folder, read-only where they are links into the
// cache or copies of it. Begun again it goes on: a file that is there is kept if
// it is the right one.
func (c *Client) Get(ctx context.Context, dir string, files []api.File, count Count) error {
	g := &getting{carrying: c.carrying(count), dir: dir, crew: newCrew(ctx, c.ways()), folders: map[string]bool{}}
	if err := g.begin(); err != nil {
		return fmt.Errorf("get %d files: %w", len(files), err)
	}
	err := g.crew.wait(g.all(files))
	g.sweep()
	return err
}

// getting is one Get.
type getting struct {
	*carrying
	dir     string
	cache   *cache // nil is none
	crew    *crew
	folders map[string]bool // that are there

	mu    sync.Mutex
	drops map[*draft]bool // that are not finished
}

func (g *getting) begin() (err error) {
	g.drops = map[*draft]bool{}
	if err = os.MkdirAll(g.dir, 0o777); err == nil && g.Cache != "" {
		g.cache, err = openCache(g.Cache)
	}
	return err
}

func (g *getting) all(files []api.File) error {
	for i := range files {
		if err := g.one(&files[i]); err != nil {
			return fmt.Errorf("get %s: %w", files[i].Path, err)
		}
	}
	return nil
}

// one makes a file's folder and starts what there is to do for it.
func (g *getting) one(f *api.File) error {
	name := filepath.FromSlash(f.Path)
	if !filepath.IsLocal(name) || name == "." {
		return errors.New("that is no path below a folder")
	}
	for _, p := range partsOf(f) {
		if len(p.Digest) != sha256.Size*2 {
			return fmt.Errorf("%q is no digest", p.Digest)
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
		g.crew.do(func(ctx context.Context) error { return g.small(ctx, f, at) })
		return nil
	}
	return g.large(f, at)
}

// small gets a file that is one object.
func (g *getting) small(ctx context.Context, f *api.File, at string) error {
	d, err := g.draft(ctx, f, at)
	if err != nil || d == nil {
		return err
	}
	return g.part(ctx, d, api.Part{Digest: f.Digest, Size: f.Size}, 0)
}

// large gets the parts of a file, several at once.
func (g *getting) large(f *api.File, at string) error {
	d, err := g.draft(g.crew.ctx, f, at)
	if err != nil || d == nil {
		return err
	}
	offset := int64(0)
	for _, p := range f.Parts {
		from := offset
		g.crew.do(func(ctx context.Context) error { return g.part(ctx, d, p, from) })
		offset += p.Size
	}
	return nil
}

// draft begins a file, unless it is there or in the cache.
func (g *getting) draft(ctx context.Context, f *api.File, at string) (*draft, error) {
	there, err := g.there(ctx, f, at)
	if err == nil && !there && g.cache != nil {
		there, err = g.cache.lay(f, at)
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

// there looks at what lies where a file is to be.
func (g *getting) there(ctx context.Context, f *api.File, at string) (bool, error) {
	info, err := os.Lstat(at)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode().IsRegular() && info.Size() == f.Size && holds(ctx, at, f) {
		return true, nil
	}
	if info.IsDir() || !g.Replace {
		return false, fmt.Errorf("%s is there and is not that file: get into another folder, or remove it", at)
	}
	return false, nil
}

// holds tells whether a file has the bytes that it should.
func holds(ctx context.Context, at string, f *api.File) bool {
	in, err := os.Open(at)
	if err != nil {
		return false
	}
	defer in.Close()
	var is api.File
	return digest(ctx, in, &is, make([]byte, min(readSize, f.Size+1))) == nil && is.Digest == f.Digest
}

// part gets an object into its place, and finishes the file if it was the last.
func (g *getting) part(ctx context.Context, d *draft, p api.Part, at int64) error {
	err := g.do(ctx, ask{method: http.MethodGet, url: g.Base + "/object?" + url.Values{"digest": {p.Digest}}.Encode(),
		take: func(r io.Reader) error { return d.take(r, p, at) }})
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

// sweep removes what was not finished.
func (g *getting) sweep() {
	for d := range g.drops {
		d.drop()
	}
}

// cache is a folder of files that have been got, by what they hold. Several
// processes may work in it: a file appears in it whole, and is never changed.
//
// Those who use it have links to its files, which are read-only; but root heeds
// no modes. So each file bears the same time, and one that bears another has
// been written to and is got anew.
type cache struct{ dir string }

const staleAfter = 24 * time.Hour // a draft is nobody's any more

// stamp is the time that the cache's files bear.
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

// clean removes what a killed process left half done.
func (c *cache) clean(now time.Time) {
	all, err := os.ReadDir(c.drafts())
	if err != nil {
		return // it comes to light when a draft is made
	}
	for _, e := range all {
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) > staleAfter {
			_ = os.Remove(filepath.Join(c.drafts(), e.Name())) // another may have
		}
	}
}

// path is where a file is kept. One in parts goes by them: they are what was
// verified, and the digest of the whole is only what somebody says.
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

// lay puts a file that is kept where it belongs.
func (c *cache) lay(f *api.File, at string) (bool, error) {
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
	err = place(kept, at)
	if errors.Is(err, os.ErrNotExist) { // somebody has made room meanwhile
		return false, nil
	}
	return err == nil, err
}

// keep takes a whole file over and puts it where it belongs. The stamp comes last:
// a draft that bears it would look old to a process that cleans up meanwhile.
func (c *cache) keep(f *api.File, draft, at string) error {
	mode := os.FileMode(0o444)
	if f.Executable {
		mode = 0o555
	}
	kept := c.path(f)
	if err := errors.Join(os.Chmod(draft, mode), os.MkdirAll(filepath.Dir(kept), 0o700)); err != nil {
		return err
	}
	if err := place(draft, at); err != nil {
		return err
	}
	if err := os.Rename(draft, kept); err != nil {
		return err
	}
	return os.Chtimes(kept, stamp(), stamp())
}

// place links a file, or copies it where the file system does not link.
func place(from, to string) error {
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
		_ = os.Remove(out.Name()) // it may have its name already
	}
	return err
}
