package wire

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/pierrec/lz4/v4"
)

// Codec is how a batch's records are compressed. All five are read; None, LZ4
// and Zstd are written.
type Codec int8

// The codecs, by their number on the wire.
const (
	None Codec = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case Gzip:
		return "gzip"
	case Snappy:
		return "snappy"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("codec %d", int8(c))
}

// maxUnpacked bounds what a batch may grow to, so that a small hostile batch
// cannot fill the memory.
const maxUnpacked = 64 << 20

// ErrTooLarge says that a batch would unpack to more than is allowed.
var ErrTooLarge = fmt.Errorf("batch unpacks to more than %d MiB", maxUnpacked>>20)

var (
	lz4Writers = sync.Pool{New: func() any { return lz4.NewWriter(nil) }}
	lz4Readers = sync.Pool{New: func() any { return lz4.NewReader(nil) }}
)

// compress appends the packed form of plain to dst.
func (c Codec) compress(dst, plain []byte) ([]byte, error) {
	switch c {
	case None:
		return append(dst, plain...), nil
	case LZ4:
		return compressLZ4(dst, plain)
	case Zstd:
		w, err := zstdWriter()
		if err != nil {
			return nil, err
		}
		return w.EncodeAll(plain, dst), nil
	}
	return nil, fmt.Errorf("%s is not written; use none, lz4 or zstd", c)
}

func compressLZ4(dst, plain []byte) ([]byte, error) {
	w := lz4Writers.Get().(*lz4.Writer)
	defer lz4Writers.Put(w)
	out := sink{dst}
	w.Reset(&out)
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1)); err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	err := w.Close()
	return out.b, err
}

// decompress appends the unpacked form of packed to dst[:0].
func (c Codec) decompress(dst, packed []byte) ([]byte, error) {
	switch c {
	case Gzip:
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return dst, err
		}
		return readBounded(dst, r)
	case Snappy:
		return unsnappy(dst, packed)
	case LZ4:
		r := lz4Readers.Get().(*lz4.Reader)
		defer lz4Readers.Put(r)
		r.Reset(bytes.NewReader(packed))
		return readBounded(dst, r)
	case Zstd:
		return unzstd(dst, packed)
	}
	return dst, fmt.Errorf("unknown %s", c)
}

// readBounded reads into dst's memory, which doubles as bytes arrive and never
// outgrows the bound, so a lie about a size costs nothing.
func readBounded(dst []byte, r io.Reader) ([]byte, error) {
	dst = dst[:0]
	for {
		if len(dst) == cap(dst) && len(dst) < maxUnpacked {
			dst = resize(dst, min(max(2*cap(dst), 64<<10), maxUnpacked))
		}
		free := dst[len(dst):min(cap(dst), maxUnpacked)]
		if len(free) == 0 {
			return dst, endOf(r)
		}
		n, err := r.Read(free)
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func resize(b []byte, size int) []byte {
	grown := make([]byte, len(b), size)
	copy(grown, b)
	return grown
}

// endOf reads on where nothing more may come.
func endOf(r io.Reader) error {
	var one [1]byte
	switch _, err := io.ReadFull(r, one[:]); err {
	case io.EOF:
		return nil
	case nil:
		return ErrTooLarge
	default:
		return err
	}
}

// Java clients frame snappy as xerial does: a magic, two versions, then
// length-prefixed blocks. librdkafka writes one bare block.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func unsnappy(dst, packed []byte) ([]byte, error) {
	if !bytes.HasPrefix(packed, xerialMagic) {
		return unsnappyBlock(dst[:0], packed)
	}
	c := cursor{b: packed[len(xerialMagic):]}
	c.take(8)
	dst = dst[:0]
	var err error
	for len(c.b) > 0 && err == nil {
		block := c.bytes()
		if c.err != nil {
			return dst, c.err
		}
		dst, err = unsnappyBlock(dst, block)
	}
	return dst, err
}

func unsnappyBlock(dst, block []byte) ([]byte, error) {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return dst, err
	}
	// Snappy packs at most 64 bytes into three, so a length far beyond that
	// is a lie that must not allocate.
	if len(dst)+n > maxUnpacked || n > 32*len(block)+64 {
		return dst, ErrTooLarge
	}
	at := len(dst)
	if cap(dst) < at+n {
		dst = resize(dst, min(max(2*cap(dst), at+n), maxUnpacked))
	}
	dst = dst[:at+n]
	_, err = snappy.Decode(dst[at:], block)
	return dst, err
}

type sink struct{ b []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}
