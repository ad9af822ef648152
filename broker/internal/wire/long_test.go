//go:build slow

package wire

import (
	"errors"
	"testing"
)

func TestBombsAreDefused(t *testing.T) {
	head := encodeRecords(t, None, nobody, Record{})
	for _, codec := range []Codec{Gzip, LZ4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			b, _, ok, err := NextBatch(repackBatch(head, codec, packZeros(t, codec, maxUnpacked+1)))
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			var r Records
			scratch := make([]byte, 0, 100)
			cost := allocatedBytes(func() { scratch, err = r.Open(b, scratch) })
			if !errors.Is(err, ErrTooLarge) {
				t.Errorf("error is %v", err)
			}
			if cost > maxCost {
				t.Errorf("cost %d MiB", cost>>20)
			}
			if cap(scratch) != 100 {
				t.Errorf("%d bytes are kept", cap(scratch))
			}
			if r.Next(new(Record)) {
				t.Error("and yet it holds a record")
			}
		})
	}
}

func TestTheBoundItselfIsAllowed(t *testing.T) {
	for _, codec := range []Codec{Gzip, LZ4, Zstd} {
		var out []byte
		var err error
		packed := packZeros(t, codec, maxUnpacked)
		cost := allocatedBytes(func() { out, err = codec.decompress(nil, packed) })
		if err != nil || len(out) != maxUnpacked || cost > maxCost {
			t.Error(codec, len(out), cost>>20, err)
		}
	}
}
