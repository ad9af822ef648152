package follow

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker"
)

// Place says how far a stream has been read: the next offset of every partition, indexed
// by its number. A reader that resumes there misses no event and reads none twice.
type Place []int64

// Beginning is the offset of a partition that was added to the stream and has not been read.
const Beginning = -1

// Set records the next offset of a partition.
func (p *Place) Set(partition int32, next int64) {
	for int(partition) >= len(*p) {
		*p = append(*p, Beginning)
	}
	(*p)[partition] = next
}

const (
	tokenVersion = 1
	nameSum      = 4       // bytes that identify the stream
	mostParts    = 1 << 17 // limit of partitions; no Kafka has a topic with more
)

// Token returns the place as opaque text that URLs and headers can carry unchanged. It identifies
// the stream, so a token of another stream is refused. The offsets of a stream's partitions are
// usually close, so each is stored as the difference to the previous offset, which takes two or
// three bytes.
func (p Place) Token(stream string) string {
	return base64.RawURLEncoding.EncodeToString(p.encode(stream))
}

func (p Place) encode(stream string) []byte {
	b := make([]byte, 0, 1+nameSum+binary.MaxVarintLen64+4*len(p))
	b = append(append(b, tokenVersion), sumOf(stream)...)
	b = binary.AppendUvarint(b, uint64(len(p)))
	last := int64(0)
	for _, offset := range p {
		b = binary.AppendVarint(b, offset-last) // may wrap around; ParseToken wraps back
		last = offset
	}
	return b
}

func sumOf(stream string) []byte {
	sum := sha256.Sum256([]byte(stream))
	return sum[:nameSum]
}

// ParseToken parses a token that Token made for the same stream.
func ParseToken(token, stream string) (Place, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	switch {
	case err != nil || len(b) < 1+nameSum:
		return nil, errToken
	case b[0] != tokenVersion:
		return nil, fmt.Errorf("it is of version %d, and this program knows %d: start again without it", b[0], tokenVersion)
	case !slices.Equal(b[1:1+nameSum], sumOf(stream)):
		return nil, fmt.Errorf("it is not a place in stream %s: use the id that this stream gave", stream)
	}
	p, ok := decodeOffsets(b[1+nameSum:])
	if !ok || !slices.Equal(p.encode(stream), b) { // each place has exactly one token
		return nil, errToken
	}
	return p, nil
}

var errToken = errors.New("it is not an id of an event of this stream: use one as it was given, in full")

func decodeOffsets(b []byte) (Place, bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > mostParts || n > uint64(len(b)-used) { // an offset has at least one byte
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

// ParseFrom parses a start position: beginning, end, an offset of each partition, a time
// ago such as -1h or -2d, or a time in RFC 3339. Its errors begin with the text, so that
// a caller can prepend the name of a flag or parameter.
func ParseFrom(text string, now time.Time) (broker.Start, error) {
	switch text {
	case "beginning":
		return broker.Earliest(), nil
	case "end":
		return broker.Latest(), nil
	}
	if offset, err := strconv.ParseInt(text, 10, 64); err == nil && offset >= 0 {
		return broker.AtOffset(offset), nil
	}
	at, err := ParseTime(text, now)
	if errors.Is(err, errNoTime) {
		return broker.Start{}, fmt.Errorf("%q is not a position in a stream: give beginning, end, an offset, a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z", text)
	}
	if err != nil {
		return broker.Start{}, err
	}
	return fromTime(at), nil
}

var errNoTime = errors.New("give a time ago such as -1h, or a time such as 2026-01-31T15:04:05Z")

// ParseTime parses a time ago such as -1h or -2d, or a time in RFC 3339. Its errors begin
// with the text too.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := parseAgo(ago)
		if err != nil || d < 0 {
			return time.Time{}, fmt.Errorf("%s is not a time ago; write it like -90s, -15m, -1h or -2d", text)
		}
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time: %w", text, errNoTime)
}

// fromTime maps a time before 1970 to the earliest offset: no record is older, and Kafka
// takes a negative time for a fault or a special value.
func fromTime(at time.Time) broker.Start {
	if at.UnixMilli() < 0 {
		return broker.Earliest()
	}
	return broker.Since(at)
}

// parseAgo accepts days too, which Go's durations do not have.
func parseAgo(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(n) * 24 * time.Hour, err
}
