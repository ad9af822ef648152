package transfer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev/api"
)

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
