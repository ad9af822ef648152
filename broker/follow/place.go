package follow

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Place is how far a stream has been read: the next offset of every partition,
// by its number. A reader that goes on there misses nothing and reads nothing
// twice.
type Place []int64

// Beginning stands for the offset of a partition of which nothing is known: one
// that was added to the stream and has not been read from.
const Beginning = -1

// Set notes that a partition is read on from an offset.
func (p *Place) Set(partition int32, next int64) {
	for int(partition) >= len(*p) {
		*p = append(*p, Beginning)
	}
	(*p)[partition] = next
}

const (
	tokenVersion = 1
	nameSum      = 4       // bytes that tell streams apart
	mostParts    = 1 << 17 // partitions; no Kafka holds a topic of more
)

// Token is the place as an opaque text of the letters that URLs and headers
// carry as they are. It names the stream, so that it cannot be taken for a place
// in another. Partitions of a stream fill about evenly, so each offset is
// written as what it differs by from the one before: two or three bytes.
func (p Place) Token(stream string) string {
	return base64.RawURLEncoding.EncodeToString(p.encode(stream))
}

func (p Place) encode(stream string) []byte {
	b := make([]byte, 0, 1+nameSum+binary.MaxVarintLen64+4*len(p))
	b = append(append(b, tokenVersion), sumOf(stream)...)
	b = binary.AppendUvarint(b, uint64(len(p)))
	last := int64(0)
	for _, offset := range p {
		b = binary.AppendVarint(b, offset-last) // may wrap around, and so does ParseToken
		last = offset
	}
	return b
}

func sumOf(stream string) []byte {
	sum := sha256.Sum256([]byte(stream))
	return sum[:nameSum]
}

// ParseToken reads what Token wrote for the same stream.
func ParseToken(token, stream string) (Place, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case err != nil || len(b) < 1+nameSum:
		return nil, errToken
	case b[0] != tokenVersion:
		return nil, fmt.Errorf("it is of version %d, and this program knows %d: start anew", b[0], tokenVersion)
	case !slices.Equal(b[1:1+nameSum], sumOf(stream)):
		return nil, fmt.Errorf("it is not a place in stream %s: use the id that this stream gave", stream)
	}
	p, ok := decodeOffsets(b[1+nameSum:])
	if !ok || !slices.Equal(p.encode(stream), b) { // one place, one token
		return nil, errToken
	}
	return p, nil
}

var errToken = errors.New("it is no id of an event of this stream: use one as it was given, whole")

func decodeOffsets(b []byte) (Place, bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > mostParts || n > uint64(len(b)-used) { // an offset is a byte or more
		return nil, false
	}
	b = b[used:]
	p, last := make(Place, n), int64(0)
	for i := range p {
		delta, used := binary.Varint(b)
		if used <= 0 {
			return nil, false
		}
		b = b[used:]
		last += delta
		if last < Beginning {
			return nil, false
		}
		p[i] = last
	}
	return p, len(b) == 0
}
