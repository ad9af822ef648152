package store

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// verified reads on, and says at the end whether the bytes were the right ones.
type verified struct {
	r      io.ReadCloser
	digest string
	left   int64
	hash   hash.Hash
	err    error // said again to those who read on
}

func verify(r io.ReadCloser, digest string, size int64) io.ReadCloser {
	return &verified{r: r, digest: digest, left: size, hash: sha256.New()}
}

func (v *verified) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	v.hash.Write(p[:n])
	v.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = v.verdict()
	}
	v.err = err
	return n, err
}

func (v *verified) verdict() error {
	if v.left != 0 || hex.EncodeToString(v.hash.Sum(nil)) != v.digest {
		return fmt.Errorf("object %s %w: put it again to heal it", v.digest, ErrCorrupt)
	}
	return io.EOF
}

func (v *verified) Close() error { return v.r.Close() }
