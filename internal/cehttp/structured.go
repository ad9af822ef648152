package cehttp

import (
	"net/http"

	"tidemill.dev/broker"
)

// ReadStructured reads an event in structured mode into v, which it empties
// first and which points into the body. Headers that repeat attributes are not
// looked at: the body rules.
func ReadStructured(h http.Header, body []byte, v *broker.View) error {
	empty(v)
	if err := expect(h, Structured); err != nil {
		return err
	}
	if err := broker.UnmarshalStructured(body, v); err != nil {
		return err
	}
	return v.Validate()
}

// ReadBatch reads a batch of at most limit events and calls each with every
// one of them, in order. One that cannot be read does not spoil the others: each
// gets its error, and its view as far as it was read. An error of ReadBatch
// is about the whole and comes before the first call; [broker.ErrTooMany] is one.
//
// Every view is one of its own, to be kept as long as the body is.
func ReadBatch(h http.Header, body []byte, limit int, each func(i int, v *broker.View, err error)) error {
	if err := expect(h, Batch); err != nil {
		return err
	}
	return broker.UnmarshalBatch(body, limit, func(i int, v *broker.View, err error) {
		if err == nil {
			err = v.Validate()
		}
		each(i, v, err)
	})
}

// WriteStructured writes an event in structured mode: it sets the headers and
// returns the body.
func WriteStructured(h http.Header, v *broker.View) []byte {
	clearEvent(h)
	h[headerContentType] = []string{typeStructured}
	return broker.MarshalStructured(v)
}

// WriteBatch writes events as a batch: it sets the headers and returns the body.
func WriteBatch(h http.Header, events []broker.View) []byte {
	clearEvent(h)
	h[headerContentType] = []string{typeBatch}
	const attributes = 512 // bytes of an event's, more or less
	size := 0
	for i := range events {
		size += len(events[i].Data) + attributes
	}
	body := append(make([]byte, 0, size), '[')
	for i := range events {
		if i > 0 {
			body = append(body, ',')
		}
		body = broker.AppendStructured(body, &events[i])
	}
	return append(body, ']')
}
