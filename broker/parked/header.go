package parked

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// ErrHeader reports a header of a parked event that cannot be decoded.
var ErrHeader = errors.New("the header of a parked event cannot be read")

// HeaderOdd is the header that holds the attributes of a parked event that may be read but not
// published. Readers are lenient: an event of another client is delivered even if its subject has a
// control character or if it has as many headers as a record may have. Such an event can wait, too.
// Otherwise a single one would prevent all later events of its partition from being parked.
const HeaderOdd = "tidemill-odd"

// Find returns the value of the last header of that name; nil if there is none.
// The last one is ours, because a publisher's headers come first.
func Find(v *broker.View, name string) []byte {
	if n := last(v.Foreign, name); n >= 0 {
		return v.Foreign[n].Value
	}
	return nil
}

func last(headers []broker.Header, name string) int {
	for n := len(headers) - 1; n >= 0; n-- {
		if headers[n].Key == name {
			return n
		}
	}
	return -1
}

// Strip returns the headers without those of some names. It does not change the
// list that it is given.
func Strip(headers []broker.Header, names ...string) []broker.Header {
	listed := func(h broker.Header) bool { return slices.Contains(names, h.Key) }
	if !slices.ContainsFunc(headers, listed) {
		return headers
	}
	return slices.DeleteFunc(slices.Clone(headers), listed)
}

// Wrap returns the event as it is parked: with one more header of the record, which is not
// an attribute, so the event itself is unchanged. A publisher's HeaderOdd is
// removed, because Unwrap would believe it.
func Wrap(v *broker.View, name string, value []byte) (broker.View, error) {
	w := *v
	foreign := Strip(v.Foreign, HeaderOdd)
	w.Foreign = append(slices.Clip(foreign), broker.Header{Key: name, Value: value})
	if w.Validate() == nil {
		return w, nil
	}
	w.Foreign = foreign
	w, err := disguiseEvent(&w)
	if err != nil {
		return broker.View{}, err
	}
	w.Foreign = append(w.Foreign, broker.Header{Key: name, Value: value})
	return w, nil
}

// Unwrap returns the event as it was before Wrap. It may change the view's list of
// headers, so the caller passes a clone.
func Unwrap(v broker.View, name string) (broker.View, error) {
	if n := last(v.Foreign, name); n >= 0 {
		v.Foreign = slices.Delete(v.Foreign, n, n+1)
	}
	odd := last(v.Foreign, HeaderOdd)
	if odd < 0 {
		return v, nil
	}
	inside := broker.View{}
	if err := gob.NewDecoder(bytes.NewReader(v.Foreign[odd].Value)).Decode(&inside); err != nil {
		v.Foreign = slices.Delete(v.Foreign, odd, odd+1)
		return v, fmt.Errorf("%w: its attributes: %w", ErrHeader, err)
	}
	inside.Key, inside.Data = v.Key, v.Data
	return inside, nil
}

// disguiseEvent returns an event that may be published for one that may not. Key and
// data stay where they are, because they may be large.
func disguiseEvent(v *broker.View) (broker.View, error) {
	inside := *v
	inside.Key, inside.Data = nil, nil
	var b bytes.Buffer // gob is used because JSON needs six bytes per control character, and headers have little room
	if err := gob.NewEncoder(&b).Encode(&inside); err != nil {
		return broker.View{}, fmt.Errorf("park an event that may not be published: %w", err)
	}
	return broker.View{ID: tidemill.ID("odd", v.Source, v.ID), Source: "/tidemill/odd", Type: "odd", Key: v.Key, Data: v.Data,
		Foreign: []broker.Header{{Key: HeaderOdd, Value: b.Bytes()}}}, nil
}

// AppendNumber adds a number to a header. Negative numbers are written as 0.
func AppendNumber(b []byte, n int64) []byte { return binary.AppendUvarint(b, uint64(max(n, 0))) }

// AppendText adds a text with its length to a header.
func AppendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Reader decodes a header. After an error it returns zeros.
type Reader struct {
	b   []byte
	err error
}

// Read begins to decode a header, whose first byte is its version.
func Read(b []byte, version byte) *Reader {
	if len(b) == 0 || b[0] != version {
		return &Reader{err: fmt.Errorf("%w: it was written by another version of Tidemill; run that one until nothing is parked", ErrHeader)}
	}
	return &Reader{b: b[1:]}
}

// Number reads the next number.
func (r *Reader) Number() int64 {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > math.MaxInt64 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return int64(n)
}

// Text reads the next text.
func (r *Reader) Text() string {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > uint64(len(r.b)-size) {
		r.fail()
		return ""
	}
	s := string(r.b[size : size+int(n)])
	r.b = r.b[size+int(n):]
	return s
}

func (r *Reader) fail() {
	r.b = nil
	if r.err == nil {
		r.err = ErrHeader
	}
}

// Rest returns the bytes that are left.
func (r *Reader) Rest() []byte { return r.b }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }
