package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"tidemill.dev/api"
)

const readSize = 256 << 10

// read takes the digests of a file.
func (s *scanning) read(ctx context.Context, f *api.File) error {
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
	if err := digest(ctx, in, f, buffer[:]); err != nil {
		return fmt.Errorf("read %s: %w", f.Path, err)
	}
	s.tally.add(1, f.Size)
	return nil
}

// digest fills in what the bytes of a file say. Of a file in parts each byte is
// hashed twice, for the part and for the whole.
func digest(ctx context.Context, in io.Reader, f *api.File, buffer []byte) error {
	whole, err := hashing{whole: sha256.New(), buffer: buffer}, error(nil)
	if f.Size, err = whole.upTo(ctx, in, api.PartSize); err != nil {
		return err
	}
	if f.Size == api.PartSize { // there may be more: the first part's digest is the whole's till here
		f.Parts = []api.Part{{Digest: sum(whole.whole), Size: api.PartSize}}
		err = whole.parts(ctx, in, f)
	}
	f.Digest = sum(whole.whole)
	if len(f.Parts) == 1 {
		f.Parts = nil
	}
	return err
}

// hashing is the digests of a file and of its present part.
type hashing struct {
	whole, part hash.Hash // part may be nil
	buffer      []byte
}

// parts goes through the second part and those behind it.
func (h *hashing) parts(ctx context.Context, in io.Reader, f *api.File) error {
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

// upTo reads so many bytes, or to the end.
func (h *hashing) upTo(ctx context.Context, in io.Reader, most int64) (n int64, err error) {
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

// openFile opens a file beneath a root. What was a file may be a pipe by now,
// and to open that would wait.
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
