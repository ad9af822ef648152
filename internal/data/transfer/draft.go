package transfer

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"tidemill.dev/api"
)

// draft is a file that is being got, under a name that nobody looks for.
type draft struct {
	file *api.File
	at   string // where it will be
	f    *os.File
	left atomic.Int32 // parts
}

// draftName begins the names of drafts. What is left of them by a process that
// was killed is nobody's file, and Scan passes it over.
const draftName = ".tidemill-get-"

func newDraft(f *api.File, at string, c *cache) (*draft, error) {
	folder, mode := filepath.Dir(at), os.FileMode(0o666)
	if f.Executable {
		mode = 0o777
	}
	if c != nil {
		folder, mode = c.drafts(), 0o600
	}
	temp, err := create(folder, mode)
	if err != nil {
		return nil, err
	}
	d := &draft{file: f, at: at, f: temp}
	d.left.Store(int32(len(partsOf(f))))
	return d, nil
}

// create makes a file that nobody else has, with the mode that the user's mask
// leaves of it.
func create(folder string, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(filepath.Join(folder, draftName+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// take writes an object to its place. Its bytes have to be those that its digest
// names.
func (d *draft) take(r io.Reader, p api.Part, at int64) error {
	h := sha256.New()
	to := &faultless{w: io.NewOffsetWriter(d.f, at)}
	n, err := io.Copy(io.MultiWriter(to, h), io.LimitReader(r, p.Size+1))
	switch {
	case to.err != nil:
		return local(to.err)
	case err != nil:
		return err
	case n < p.Size:
		return io.ErrUnexpectedEOF
	case n > p.Size || sum(h) != p.Digest:
		return local(fmt.Errorf("object %s came with other bytes than its digest names: it is corrupt in the store, or on the way", p.Digest))
	}
	return nil
}

// faultless remembers an error of writing, which no retry mends.
type faultless struct {
	w   io.Writer
	err error
}

func (f *faultless) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		f.err = err
	}
	return n, err
}

// finish puts the whole file where it belongs.
func (d *draft) finish(c *cache) error {
	if c != nil {
		return errors.Join(d.f.Close(), c.keep(d.file, d.f.Name(), d.at))
	}
	if err := d.f.Close(); err != nil {
		return err
	}
	return os.Rename(d.f.Name(), d.at)
}

func (d *draft) drop() {
	_ = d.f.Close() // perhaps it is
	_ = os.Remove(d.f.Name())
}
