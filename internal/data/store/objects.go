package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"tidemill.dev/api"
)

const (
	smallObject = 64 << 10 // up to this it is read whole before anything is written
	copyBuffer  = 256 << 10
	signedFor   = 15 * time.Minute
)

// PutObject stores bytes, which must have the digest (SHA-256, hex) and size.
// Other bytes leave nothing. An object that is there is written again, which
// keeps it from a collection and heals it.
func (s *Store) PutObject(ctx context.Context, digest string, size int64, r io.Reader) error {
	if err := checkDigest(digest); err != nil {
		return err
	}
	put := s.putLarge
	if size <= smallObject {
		put = s.putSmall
	}
	if err := put(ctx, digest, size, r); err != nil {
		return fmt.Errorf("put object %s: %w", digest, err)
	}
	return nil
}

func (s *Store) putSmall(ctx context.Context, digest string, size int64, r io.Reader) error {
	lent := s.small.Get().(*[]byte)
	defer s.small.Put(lent)
	data := (*lent)[:size]
	if n, err := io.ReadFull(r, data); err != nil {
		return shorter(err, int64(n), size)
	}
	if err := ends(r, size); err != nil {
		return err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
		return invalid("the bytes have the digest %x", sum)
	}
	return s.bucket.put(ctx, objectKey(digest), data)
}

func (s *Store) putLarge(ctx context.Context, digest string, size int64, r io.Reader) error {
	return s.bucket.write(ctx, objectKey(digest), nil, func(w io.Writer) error {
		h := sha256.New()
		n, err := io.CopyBuffer(io.MultiWriter(w, h), io.LimitReader(r, size), make([]byte, copyBuffer))
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return shorter(err, n, size)
		}
		if err := ends(r, size); err != nil {
			return err
		}
		if sum := h.Sum(nil); hex.EncodeToString(sum) != digest {
			return invalid("the bytes have the digest %x", sum)
		}
		return nil
	})
}

// shorter says that bytes ended early, if that is what an error means.
func shorter(err error, have, want int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("%d bytes came of %d", have, want)
	}
	return fmt.Errorf("read its bytes: %w", err)
}

// ends makes sure that nothing follows.
func ends(r io.Reader, size int64) error {
	var one [1]byte
	switch n, err := io.ReadFull(r, one[:]); {
	case n > 0:
		return invalid("more than %d bytes came", size)
	case errors.Is(err, io.EOF):
		return nil
	default:
		return fmt.Errorf("read its bytes: %w", err)
	}
}

// Object opens an object. Its reader fails at the end if the bytes are not those
// that the digest names.
func (s *Store) Object(ctx context.Context, digest string) (r io.ReadCloser, size int64, err error) {
	if err := checkDigest(digest); err != nil {
		return nil, 0, err
	}
	b, err := s.bucket.open(ctx, objectKey(digest))
	if err != nil {
		return nil, 0, fmt.Errorf("object %s: %w", digest, err)
	}
	return verify(b, digest, b.Size()), b.Size(), nil
}

// Missing returns those that have to be put: they are not there. Those that are,
// but so old that a collection could take them before they are used, are made
// young.
func (s *Store) Missing(ctx context.Context, all []api.Part) ([]api.Part, error) {
	var lock sync.Mutex
	absent := map[string]bool{}
	err := each(ctx, s.bucket.ways, unique(all), func(ctx context.Context, p api.Part) error {
		ok, err := s.fresh(ctx, p)
		if err == nil && !ok {
			lock.Lock()
			defer lock.Unlock()
			absent[p.Digest] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var missing []api.Part
	for _, p := range unique(all) {
		if absent[p.Digest] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// fresh reports whether an object is there, and will be for half a grace. One of
// another size is broken, so it counts as absent.
func (s *Store) fresh(ctx context.Context, p api.Part) (bool, error) {
	if err := checkDigest(p.Digest); err != nil {
		return false, err
	}
	i, err := s.bucket.stat(ctx, objectKey(p.Digest))
	if err == nil && i.size == p.Size && s.now().Sub(i.time) > s.grace/2 {
		err = s.rejuvenate(ctx, p)
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for object %s: %w", p.Digest, err)
	}
	return i.size == p.Size, nil
}

// rejuvenate has an object's age begin anew. Outside a folder it is written
// anew: buckets agree on no other way.
func (s *Store) rejuvenate(ctx context.Context, p api.Part) error {
	if s.bucket.dir != "" {
		return s.bucket.touch(objectKey(p.Digest), s.now())
	}
	r, size, err := s.Object(ctx, p.Digest)
	if err != nil {
		return err
	}
	defer r.Close()
	return s.PutObject(ctx, p.Digest, size, r)
}

func unique(parts []api.Part) []api.Part {
	seen := make(map[string]bool, len(parts))
	var once []api.Part
	for _, p := range parts {
		if !seen[p.Digest] {
			seen[p.Digest] = true
			once = append(once, p)
		}
	}
	return once
}

// SignedGet is where an object may be got directly for some minutes; empty if the
// store cannot sign. Who gets it has to check its digest.
func (s *Store) SignedGet(ctx context.Context, digest string) (string, error) {
	if err := checkDigest(digest); err != nil {
		return "", err
	}
	at, err := s.bucket.sign(ctx, objectKey(digest), signedFor)
	if err != nil {
		return "", fmt.Errorf("sign a URL of object %s: %w", digest, err)
	}
	return at, nil
}

// SignedPut is where an object may be put directly for some minutes; empty if
// the store cannot sign, or cannot have it checked that the bytes are those that
// the digest names. No bucket can, portably: whoever held such a URL could put
// other bytes in an object's place, so all are put through PutObject.
func (s *Store) SignedPut(ctx context.Context, p api.Part) (string, error) {
	return "", checkDigest(p.Digest)
}
