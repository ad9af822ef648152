package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"

	"tidemill.dev/api"
)

const (
	smallObject  = 1 << 20 // larger ones go alone
	batchBytes   = 8 << 20
	batchObjects = 1000
)

// batch is small objects that are put in one request.
type batch struct {
	objects []*object
	length  int64 // of the body
}

func (b *batch) isFull(next *object) bool {
	return len(b.objects) == batchObjects || len(b.objects) > 0 && b.length+api.ObjectHead+next.Size > batchBytes
}

func (b *batch) add(o *object) {
	b.objects = append(b.objects, o)
	b.length += api.ObjectHead + o.Size
}

func (p *putting) together(ctx context.Context, b batch) error {
	err := p.do(ctx, ask{method: http.MethodPost, url: p.Base + "/objects", media: api.ObjectsType, length: b.length,
		body: func() io.Reader { return &batchReader{root: p.root, left: b.objects} }})
	if err != nil {
		return fmt.Errorf("put %d objects, the first of %s: %w", len(b.objects), b.objects[0].file, err)
	}
	for _, o := range b.objects {
		p.sent(o)
	}
	return nil
}

// batchReader is the body of a batch. It opens one file after the other.
type batchReader struct {
	root *os.Root
	left []*object
	head []byte // of the next object, what is left of it
	now  *objectReader
}

func (b *batchReader) Read(to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = b.some(to[n:])
		n += k
	}
	return n, err
}

func (b *batchReader) some(to []byte) (int, error) {
	switch {
	case len(b.head) > 0:
		n := copy(to, b.head)
		b.head = b.head[n:]
		return n, nil
	case b.now != nil:
		n, err := b.now.Read(to)
		if errors.Is(err, io.EOF) {
			b.now, err = nil, nil
		}
		return n, err
	case len(b.left) == 0:
		return 0, io.EOF
	}
	o := b.left[0]
	digest, err := hex.DecodeString(o.Digest)
	if err != nil {
		return 0, local(err)
	}
	b.head = binary.BigEndian.AppendUint64(digest, uint64(o.Size))
	b.now, b.left = &objectReader{root: b.root, o: o}, b.left[1:]
	return 0, nil
}

func (b *batchReader) Close() error {
	if b.now != nil {
		return b.now.Close()
	}
	return nil
}

// objectReader is the bytes of an object, as they are in the file now: if that
// has changed since it was scanned, it is an error.
type objectReader struct {
	root *os.Root
	o    *object
	f    *os.File
	n    int64
	sum  hash.Hash
}

func (r *objectReader) Read(to []byte) (int, error) {
	if r.n == r.o.Size && r.sum != nil {
		return 0, io.EOF
	}
	if err := r.open(); err != nil {
		return 0, local(err)
	}
	n, err := r.f.ReadAt(to[:min(int64(len(to)), r.o.Size-r.n)], r.o.at+r.n)
	r.n += int64(n)
	r.sum.Write(to[:n])
	switch {
	case r.n == r.o.Size && sum(r.sum) != r.o.Digest, err != nil && errors.Is(err, io.EOF) && r.n < r.o.Size:
		return 0, local(errors.Join(fmt.Errorf("%s has changed since it was read: try again when nobody writes to it", r.o.file), r.Close()))
	case r.n == r.o.Size:
		return n, local(r.Close())
	case err != nil:
		return n, local(err)
	}
	return n, nil
}

func (r *objectReader) open() (err error) {
	if r.f == nil {
		r.sum = sha256.New()
		r.f, _, err = openFile(r.root, r.o.file)
	}
	return err
}

// Close closes the file.
func (r *objectReader) Close() error {
	if r.f == nil {
		return nil
	}
	f := r.f
	r.f = nil
	return f.Close()
}
