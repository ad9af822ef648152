package wire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is the compression of a batch's records. We read all five codecs, and write None,
// LZ4 and Zstd.
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

// maxUnpacked bounds the unpacked size of a batch, so that a small hostile batch cannot
// fill the memory.
const maxUnpacked = 64 << 20

// ErrTooLarge means that a batch would unpack to more than maxUnpacked.
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

// readBounded reads into dst's memory, which doubles as bytes arrive and never exceeds
// the bound, so a wrong size costs nothing.
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

// endOf checks that the reader is at its end.
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
		block := c.sliceBytes()
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
	// Snappy packs at most 64 bytes into three, so a length far beyond that is wrong and
	// must not allocate memory.
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

// The zstd coders keep no state between calls. Both are safe for concurrent use and take megabytes
// each, so the process shares one encoder and one decoder.
var (
	zstdWriter = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	})
	zstdReader = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxUnpacked))
	})
)

// Zstd's names of its blocks, and the largest unpacked size of one.
const (
	zstdRepeated   = 1
	zstdCompressed = 2
	zstdMaxBlock   = 128 << 10
)

// unzstd gives the decoder all the memory it may need at once. Otherwise the memory of the decoder
// grows in small steps, or frame by frame. Then a few kilobytes of small frames would cost
// gigabytes.
func unzstd(dst, packed []byte) ([]byte, error) {
	r, err := zstdReader()
	if err != nil {
		return dst, err
	}
	size, err := zstdSize(packed)
	if err != nil {
		return dst, err
	}
	if cap(dst) < size {
		dst = make([]byte, 0, size)
	}
	out, err := r.DecodeAll(packed, dst[:0])
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		err = ErrTooLarge
	}
	return out, err
}

// zstdSize returns an upper bound of the unpacked size of some frames: the size in a frame's head,
// or the sum of its blocks if the head has none, as with stream encoders. The decoder checks its
// bound after each block, so the decoder gets room for one more block.
func zstdSize(packed []byte) (size int, err error) {
	for len(packed) > 0 && size <= maxUnpacked {
		var head zstd.Header
		if packed, err = head.DecodeAndStrip(packed); err != nil {
			return 0, err
		}
		if head.Skippable {
			packed = packed[min(int64(head.SkippableSize), int64(len(packed))):]
			continue
		}
		var frame int
		frame, packed = zstdBlocks(packed)
		if head.HasCheckSum {
			packed = packed[min(4, len(packed)):]
		}
		if head.HasFCS && head.FrameContentSize > uint64(frame) {
			return 0, fmt.Errorf("a frame says that it unpacks to %d bytes, and holds at most %d", head.FrameContentSize, frame)
		}
		if head.HasFCS {
			frame = int(head.FrameContentSize)
		}
		size += frame
	}
	return min(size, maxUnpacked+zstdMaxBlock), nil
}

// zstdBlocks returns an upper bound of the unpacked size of a frame's blocks, and the
// bytes after the last block.
func zstdBlocks(packed []byte) (size int, rest []byte) {
	for last := false; len(packed) >= 3 && !last; {
		block := int(packed[0]) | int(packed[1])<<8 | int(packed[2])<<16
		kind, length := block>>1&3, block>>3
		last = block&1 == 1
		switch kind {
		case zstdCompressed:
			size += zstdMaxBlock
		case zstdRepeated:
			size, length = size+length, 1
		default:
			size += length
		}
		packed = packed[min(3+length, len(packed)):]
	}
	return size, packed
}
