package store

import (
	"context"
	"errors"
	"io"

	"tidemill.dev/api"
)

// OpenFile reads a file, whole or in parts. Its reader fails at the end if the
// bytes are not those that the file's digest names.
func (s *Store) OpenFile(ctx context.Context, f api.File) (io.ReadCloser, error) {
	if len(f.Parts) == 0 {
		r, _, err := s.Object(ctx, f.Digest)
		return r, err
	}
	p := &parts{ctx: ctx, store: s, left: f.Parts}
	if err := p.next(); err != nil {
		return nil, err
	}
	return verify(p, f.Digest, f.Size), nil
}

// parts reads one object behind the other.
type parts struct {
	ctx   context.Context // of the reader, whose Read is given none
	store *Store
	left  []api.Part
	now   io.ReadCloser
}

func (p *parts) next() error {
	r, _, err := p.store.Object(p.ctx, p.left[0].Digest)
	if err == nil {
		p.now, p.left = r, p.left[1:]
	}
	return err
}

func (p *parts) Read(b []byte) (int, error) {
	n, err := p.now.Read(b)
	if !errors.Is(err, io.EOF) || len(p.left) == 0 {
		return n, err
	}
	return n, errors.Join(p.now.Close(), p.next())
}

func (p *parts) Close() error { return p.now.Close() }

// checkFile says what is wrong with a file, if anything.
func checkFile(f api.File) error {
	if err := CheckPath(f.Path); err != nil {
		return err
	}
	if err := checkDigest(f.Digest); err != nil {
		return invalid("file %q: %v", f.Path, err)
	}
	if len(f.Parts) == 0 {
		if f.Size < 0 || f.Size > api.PartSize {
			return invalid("file %q of %d bytes: one larger than %d must name its parts", f.Path, f.Size, api.PartSize)
		}
		return nil
	}
	return checkParts(f)
}

func checkParts(f api.File) error {
	sum := int64(0)
	for i, p := range f.Parts {
		if err := checkDigest(p.Digest); err != nil {
			return invalid("file %q: part %d: %v", f.Path, i, err)
		}
		if p.Size < 1 || p.Size > api.PartSize {
			return invalid("file %q: part %d has %d bytes: a part has 1 to %d", f.Path, i, p.Size, api.PartSize)
		}
		sum += p.Size
	}
	if sum != f.Size {
		return invalid("file %q has %d bytes, but its parts have %d", f.Path, f.Size, sum)
	}
	return nil
}

// objectsOf are the objects that files consist of.
func objectsOf(files []api.File) []api.Part {
	all := make([]api.Part, 0, len(files))
	for _, f := range files {
		if len(f.Parts) == 0 {
			all = append(all, api.Part{Digest: f.Digest, Size: f.Size})
		}
		all = append(all, f.Parts...)
	}
	return unique(all)
}
