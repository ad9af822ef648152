package wire

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The zstd coders hold no state between calls; both are safe for concurrent
// use and cost megabytes each, so the process shares one of each.
var (
	zstdWriter = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	})
	zstdReader = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxUnpacked))
	})
)

// What zstd calls its blocks, and the most that one unpacks to.
const (
	zstdRepeated   = 1
	zstdCompressed = 2
	zstdMaxBlock   = 128 << 10
)

// unzstd gives the decoder all the memory it may need at once. Left to itself
// it grows in small steps where a frame does not say its size, and frame by
// frame where each does: a few kilobytes of small frames then cost gigabytes.
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

// zstdSize is at most what frames unpack to: what their heads say, or where
// those say nothing, as encoders of streams do, the sum of their blocks. The
// decoder looks at its bound after each block, so it gets room for one more.
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

// zstdBlocks is at most what a frame's blocks unpack to, and what is behind
// the last of them.
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
