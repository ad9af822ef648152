package cehttp

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker"
)

// Mode is the content mode of a message.
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

// UnsupportedError reports a message whose form is not supported, whatever its contents.
type UnsupportedError struct {
	Header string // header that shows the form
	Value  string
	Advice string
}

// Error names the header and suggests a form that is supported.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("header %s is %.40q: %s", strings.ToLower(e.Header), e.Value, e.Advice)
}

// ModeOf returns the mode that the content type shows. It returns an [UnsupportedError] for event
// formats other than JSON, for JSON that is not in UTF-8, and for compressed bodies. As the binding
// says, a message without an event counts as binary; only [ReadBinary] detects that the event is
// missing.
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

// contentTypeOf returns the content type. Two Content-Type headers are an error, because it is
// unclear which of them counts.
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

// formatOf returns the mode of a CloudEvents content type.
func formatOf(contentType string) (Mode, error) {
	switch contentType { // the usual spellings, which need no parsing
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

// checkMode checks that a message has the wanted mode.
func checkMode(h http.Header, want Mode) error {
	got, err := ModeOf(h)
	if err != nil || got == want {
		return err
	}
	contentType, _ := contentTypeOf(h)
	return &UnsupportedError{headerContentType, contentType, "it is " + got.String() + " mode, and " + want.String() + " mode is wanted here"}
}

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Structured:
		return "structured"
	case Batch:
		return "batched"
	}
	return "binary"
}

// ReadStructured reads an event in structured mode into v. ReadStructured empties v first;
// afterwards v points into the body. Headers that repeat attributes are ignored, because the body
// takes precedence.
func ReadStructured(h http.Header, body []byte, v *broker.View) error {
	clearView(v)
	if err := checkMode(h, Structured); err != nil {
		return err
	}
	if err := broker.UnmarshalStructured(body, v); err != nil {
		return err
	}
	return v.Validate()
}

// ReadBatch reads a batch of at most limit events and calls each for every event in order. An event
// that cannot be read does not affect the others: its call gets the error and the part of the view
// that was read. An error of ReadBatch concerns the whole batch and comes before the first call;
// one example is [broker.ErrTooMany].
//
// Every call gets a new view, which is valid as long as the body.
func ReadBatch(h http.Header, body []byte, limit int, each func(i int, v *broker.View, err error)) error {
	if err := checkMode(h, Batch); err != nil {
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
	const attributes = 512 // rough size of one event's attributes in bytes
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

const (
	headerPrefix      = "Ce-"
	headerSpecVersion = "Ce-Specversion"
	specVersion       = "1.0"

	// Validate allows fewer attributes, but it checks for duplicates first, in quadratic
	// time; a hostile head has many headers.
	maxAttributes = 256
)

var (
	errTwice    = errors.New("is given twice: repeat no header of an event")
	errDataType = errors.New("must not be the header ce-datacontenttype: use content-type")
	errNoEvent  = errors.New("is missing: this is not a CloudEvent; send its attributes as headers (ce-specversion, ce-id, …), or the whole of it as JSON with content-type " + typeStructured)
	errMany     = fmt.Errorf("event has more than %d attributes", maxAttributes)
)

// ReadBinary reads an event in binary mode into v. It empties v first; afterwards v
// points into the body and the headers' strings. Headers that are not attributes are
// ignored: they belong to the message, not to the event. An empty body means no data,
// because HTTP does not distinguish the two.
//
// An http.Header has lost the order of its headers, so extensions are sorted by name: the
// same event always makes the same record.
func ReadBinary(h http.Header, body []byte, v *broker.View) error {
	clearView(v)
	if err := checkMode(h, Binary); err != nil {
		return err
	}
	if len(h[headerSpecVersion]) == 0 {
		return &broker.AttributeError{Name: "specversion", Err: errNoEvent} // the first check, because specversion decides which other checks apply
	}
	var texts textBuffer
	for key, values := range h {
		if !strings.HasPrefix(key, headerPrefix) || len(values) == 0 {
			continue
		}
		if err := readAttribute(texts.attributeName(key), values, v, &texts); err != nil {
			return err
		}
	}
	slices.SortFunc(v.Extensions, func(a, b broker.Attribute) int { return strings.Compare(a.Name, b.Name) })
	v.DataContentType, _ = contentTypeOf(h)
	if len(body) > 0 {
		v.Data = body
	}
	return v.Validate()
}

func readAttribute(name string, values []string, v *broker.View, texts *textBuffer) error {
	switch {
	case name == "datacontenttype":
		return &broker.AttributeError{Name: name, Err: errDataType}
	case len(values) > 1:
		return &broker.AttributeError{Name: name, Err: errTwice}
	case len(v.Extensions) == maxAttributes:
		return errMany
	}
	value := values[0]
	if strings.IndexByte(value, '%') >= 0 || strings.IndexByte(value, '"') >= 0 {
		value = texts.decodeValue(name, value)
	}
	return v.Set(name, value)
}

// clearView clears the view and keeps its slices for the next event.
func clearView(v *broker.View) {
	*v = broker.View{Extensions: v.Extensions[:0], Foreign: v.Foreign[:0]}
}

// coreHeaders is the largest number of an event's headers without extensions.
const coreHeaders = 8

// WriteBinary writes an event in binary mode. It removes the event headers in h, sets the new ones,
// and returns the body, which is the event's data. WriteBinary does not check the event: see
// [broker.View.Validate]. The event's record key and foreign headers are not written, because they
// belong to Kafka.
func WriteBinary(h http.Header, v *broker.View) (body []byte) {
	clearEvent(h)
	// Without this line a server would guess the response's content type.
	h[headerContentType] = nil
	w := headerWriter{h: h, values: make([]string, 0, coreHeaders+len(v.Extensions))}
	w.set(headerSpecVersion, specVersion)
	w.set("Ce-Id", encodeValue(v.ID))
	w.set("Ce-Source", encodeValue(v.Source))
	w.set("Ce-Type", encodeValue(v.Type))
	w.setOptional("Ce-Subject", encodeValue(v.Subject))
	w.setOptional("Ce-Time", encodeValue(v.Time))
	w.setOptional("Ce-Dataschema", encodeValue(v.DataSchema))
	w.setOptional(headerContentType, v.DataContentType)
	for i := range v.Extensions {
		w.set(headerOf(v.Extensions[i].Name), encodeValue(v.Extensions[i].Value))
	}
	return v.Data
}

// headerWriter stores the values of all headers in one array.
type headerWriter struct {
	h      http.Header
	values []string
}

func (w *headerWriter) set(key, value string) {
	n := len(w.values)
	w.values = append(w.values, value)
	w.h[key] = w.values[n : n+1 : n+1]
}

func (w *headerWriter) setOptional(key, value string) {
	if value != "" {
		w.set(key, value)
	}
}

// headerOf returns the header of an attribute in net/http's canonical form. headerOf need not check
// every letter, because a name has no hyphen and no upper case.
func headerOf(name string) string {
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		return headerPrefix + name
	}
	return headerPrefix + string(rune(name[0]-'a'+'A')) + name[1:]
}

// clearEvent removes the attributes of an earlier event from h, so that the next event has only its
// own attributes.
func clearEvent(h http.Header) {
	for key := range h {
		if strings.HasPrefix(key, headerPrefix) {
			delete(h, key)
		}
	}
}

// textBuffer is memory for values that cannot point into the message, such as a name in lower case.
// One allocation is nearly always enough for an event.
type textBuffer struct{ b strings.Builder }

const usualTexts = 128

func (t *textBuffer) grow(n int) (start int) {
	if t.b.Cap()-t.b.Len() < n {
		// The texts keep pointing into the full builder, because growing it would copy them.
		t.b = strings.Builder{}
		t.b.Grow(max(n, usualTexts))
	}
	return t.b.Len()
}

// attributeName returns the attribute of a header ce-<name>. net/http has made its first letter
// upper case.
func (t *textBuffer) attributeName(key string) string {
	switch key {
	case headerSpecVersion:
		return "specversion"
	case "Ce-Id":
		return "id"
	case "Ce-Source":
		return "source"
	case "Ce-Type":
		return "type"
	case "Ce-Subject":
		return "subject"
	case "Ce-Time":
		return "time"
	case "Ce-Dataschema":
		return "dataschema"
	}
	return t.toLower(key[len(headerPrefix):])
}

// toLower converts only ASCII to lower case, because attribute names have no other letters.
func (t *textBuffer) toLower(s string) string {
	start := t.grow(len(s))
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		t.b.WriteByte(c)
	}
	return t.b.String()[start:]
}

// decodeValue returns the attribute value of a header value: it removes quotes and does one round
// of percent-decoding. A percent sign that begins no escape stays unchanged, and so does a quote
// within a value. Half of the SDKs, including sdk-go, write values unencoded, and the value "100%"
// must not change.
func (t *textBuffer) decodeValue(name, value string) string {
	value = unquote(value)
	plain := t.unescape(value)
	if (name == "source" || name == "dataschema") && utf8.ValidString(plain) && !isURI(plain) {
		// The escapes belong to the URI itself, and the writer does not encode. A writer that
		// encodes would also have encoded the percent signs of these escapes.
		return value
	}
	return plain
}

// unquote decodes a value that is wholly a quoted-string of RFC 7230. Writers before version 1.0.2
// of the binding protected spaces in this way.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	inner := s[1 : len(s)-1]
	if !strings.ContainsAny(inner, `"\`) {
		return inner
	}
	plain := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c == '"', c == '\\' && i+1 == len(inner):
			return s // a quote within the value: not a quoted-string
		case c == '\\':
			i++
		}
		plain = append(plain, inner[i])
	}
	return string(plain)
}

func (t *textBuffer) unescape(s string) string {
	next := escapeIndex(s)
	if next < 0 {
		return s
	}
	start := t.grow(len(s))
	for ; next >= 0; next = escapeIndex(s) {
		t.b.WriteString(s[:next])
		t.b.WriteByte(unhex(s[next+1])<<4 | unhex(s[next+2]))
		s = s[next+3:]
	}
	t.b.WriteString(s)
	return t.b.String()[start:]
}

// encodeValue returns a value as a header value: space, quote, percent and all except
// printable ASCII become %XY, for each byte of UTF-8.
func encodeValue(s string) string {
	n := 0
	for i := range len(s) {
		if mustEncode(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		c := s[i]
		if !mustEncode(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

func mustEncode(c byte) bool {
	return c <= ' ' || c >= 0x7f || c == '"' || c == '%'
}

// escapeIndex returns the index of the first %XY in s, or -1 if s has no %XY.
func escapeIndex(s string) int {
	for i := 0; ; i++ {
		next := strings.IndexByte(s[i:], '%')
		if next < 0 {
			return -1
		}
		if i += next; i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			return i
		}
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// isURI reports whether s has only characters that RFC 3986 allows in a URI; Validate checks
// whether s is a URI.
func isURI(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			return false
		}
	}
	return true
}
