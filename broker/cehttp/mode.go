package cehttp

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"tidemill.dev/broker"
)

// Mode is how a message carries events.
type Mode int

// The content modes.
const (
	Binary Mode = iota
	Structured
	Batch
)

const (
	headerContentType     = "Content-Type"
	headerContentEncoding = "Content-Encoding"

	typePrefix     = "application/cloudevents"
	typeStructured = "application/cloudevents+json"
	typeBatch      = "application/cloudevents-batch+json"
)

// UnsupportedError is a message in a form that is not read, whatever it holds.
type UnsupportedError struct {
	Header string // that says so
	Value  string
	Advice string
}

// Error names the header and what to send instead.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("header %s is %.40q: %s", strings.ToLower(e.Header), e.Value, e.Advice)
}

// ModeOf tells the mode by the content type. An [UnsupportedError] is for event
// formats other than JSON, for JSON that is not in UTF-8, and for bodies that
// are compressed. A message that is no event at all is taken for a binary one,
// as the binding says: only [ReadBinary] finds out.
func ModeOf(h http.Header) (Mode, error) {
	if err := encodingFault(h); err != nil {
		return 0, err
	}
	contentType, err := contentTypeOf(h)
	if err != nil {
		return 0, err
	}
	if len(contentType) < len(typePrefix) || !strings.EqualFold(contentType[:len(typePrefix)], typePrefix) {
		return Binary, nil
	}
	return formatOf(contentType)
}

// contentTypeOf is the one content type; of two, nobody can say which counts.
func contentTypeOf(h http.Header) (string, error) {
	values := h[headerContentType]
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", &broker.AttributeError{Name: "datacontenttype", Err: errors.New("is given twice, as two headers content-type")}
	}
	return values[0], nil
}

func encodingFault(h http.Header) error {
	for _, value := range h[headerContentEncoding] {
		if value != "" && !strings.EqualFold(value, "identity") {
			return &UnsupportedError{headerContentEncoding, value, "send the body as it is, without compression"}
		}
	}
	return nil
}

// formatOf is the mode that a content type of CloudEvents names.
func formatOf(contentType string) (Mode, error) {
	switch contentType { // as most write it, which needs no parsing
	case typeStructured:
		return Structured, nil
	case typeBatch:
		return Batch, nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return 0, &UnsupportedError{headerContentType, contentType, err.Error()}
	}
	if !isUTF8(params["charset"]) {
		return 0, &UnsupportedError{headerContentType, contentType, "JSON is read in UTF-8 only"}
	}
	switch media {
	case typeStructured:
		return Structured, nil
	case typeBatch:
		return Batch, nil
	}
	return 0, &UnsupportedError{headerContentType, contentType,
		"of the event formats only " + typeStructured + " and " + typeBatch + " are read"}
}

func isUTF8(charset string) bool {
	return charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}

// expect holds a message against the mode that it is to be read in.
func expect(h http.Header, want Mode) error {
	got, err := ModeOf(h)
	if err != nil || got == want {
		return err
	}
	contentType, _ := contentTypeOf(h)
	return &UnsupportedError{headerContentType, contentType, "it is " + got.String() + " mode, and " + want.String() + " mode is wanted here"}
}

// String is the mode's name.
func (m Mode) String() string {
	switch m {
	case Structured:
		return "structured"
	case Batch:
		return "batched"
	}
	return "binary"
}

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
