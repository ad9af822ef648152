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

const (
	headerPrefix      = "Ce-"
	headerSpecVersion = "Ce-Specversion"
	specVersion       = "1.0"

	// An event holds less, says Validate, but it looks for names given twice
	// before it counts, which is quadratic; a hostile head has many headers.
	maxAttributes = 256
)

var (
	errTwice    = errors.New("is given twice: repeat no header of an event")
	errDataType = errors.New("must not be the header ce-datacontenttype: use content-type")
	errNoEvent  = errors.New("is missing: this is no CloudEvent; send its attributes as headers (ce-specversion, ce-id, …), or the whole of it as JSON with content-type " + typeStructured)
	errMany     = fmt.Errorf("event has more than %d attributes", maxAttributes)
)

// ReadBinary reads an event in binary mode into v, which it empties first. v
// points into the body and into the headers' strings. Headers that are no
// attributes stay behind; they belong to the message, not to the event. An
// empty body is no data, as HTTP cannot tell the two apart.
//
// An http.Header has lost the order of its headers, so extensions come in the
// order of their names: the same event makes the same record every time.
func ReadBinary(h http.Header, body []byte, v *broker.View) error {
	empty(v)
	if err := expect(h, Binary); err != nil {
		return err
	}
	if len(h[headerSpecVersion]) == 0 {
		return &broker.AttributeError{Name: "specversion", Err: errNoEvent} // first, as whatever else there is means nothing then
	}
	var texts texts
	for key, values := range h {
		if !strings.HasPrefix(key, headerPrefix) || len(values) == 0 {
			continue
		}
		if err := readAttribute(texts.name(key), values, v, &texts); err != nil {
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

func readAttribute(name string, values []string, v *broker.View, texts *texts) error {
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
		value = texts.decode(name, value)
	}
	return v.Set(name, value)
}

// empty keeps the view's slices for the next event.
func empty(v *broker.View) {
	*v = broker.View{Extensions: v.Extensions[:0], Foreign: v.Foreign[:0]}
}

// coreHeaders is how many headers an event has besides its extensions, at most.
const coreHeaders = 8

// WriteBinary writes an event in binary mode: it sets the headers, those of an
// event that h had before are gone, and returns the body, which is the event's
// data. It checks nothing: see [broker.View.Validate]. The event's record key
// and foreign headers stay behind; they are Kafka's.
func WriteBinary(h http.Header, v *broker.View) (body []byte) {
	clearEvent(h)
	// Without this a server's response would get a content type by guessing.
	h[headerContentType] = nil
	w := headerWriter{h: h, values: make([]string, 0, coreHeaders+len(v.Extensions))}
	w.set(headerSpecVersion, specVersion)
	w.set("Ce-Id", encode(v.ID))
	w.set("Ce-Source", encode(v.Source))
	w.set("Ce-Type", encode(v.Type))
	w.setOptional("Ce-Subject", encode(v.Subject))
	w.setOptional("Ce-Time", encode(v.Time))
	w.setOptional("Ce-Dataschema", encode(v.DataSchema))
	w.setOptional(headerContentType, v.DataContentType)
	for i := range v.Extensions {
		w.set(headerOf(v.Extensions[i].Name), encode(v.Extensions[i].Value))
	}
	return v.Data
}

// headerWriter gives all headers one array for their values.
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

// headerOf is the header of an attribute in net/http's canonical form, without
// its walk over every letter: a name has no hyphen and no upper case.
func headerOf(name string) string {
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		return headerPrefix + name
	}
	return headerPrefix + string(rune(name[0]-'a'+'A')) + name[1:]
}

// clearEvent takes the attributes of an event away that h had before, so that
// none of them joins the next one.
func clearEvent(h http.Header) {
	for key := range h {
		if strings.HasPrefix(key, headerPrefix) {
			delete(h, key)
		}
	}
}

// texts is memory for what cannot point into a message, such as a name in lower
// case: one allocation for all of an event's, nearly always.
type texts struct{ b strings.Builder }

const usualTexts = 128

func (t *texts) grow(n int) (start int) {
	if t.b.Cap()-t.b.Len() < n {
		// A full one is left to those that point into it; growing it would copy.
		t.b = strings.Builder{}
		t.b.Grow(max(n, usualTexts))
	}
	return t.b.Len()
}

// name is the attribute that a header ce-<name> carries. net/http has made its
// first letter upper case.
func (t *texts) name(key string) string {
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
	return t.lower(key[len(headerPrefix):])
}

// lower is ASCII's lower case and no more: no letter beyond it is in a name.
func (t *texts) lower(s string) string {
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

// decode is an attribute's value of a header's: quotes are taken off and one
// round of percent-decoding is done. A percent sign that begins no escape stands
// for itself, and so does a quote within a value: half of the SDKs, sdk-go too,
// write values as they are, and 100% has to survive.
func (t *texts) decode(name, value string) string {
	value = unquote(value)
	plain := t.unescape(value)
	if (name == "source" || name == "dataschema") && utf8.ValidString(plain) && !isURI(plain) {
		// The escapes are the URI's own, from one of those SDKs: a writer that
		// encodes would have encoded their percent signs.
		return value
	}
	return plain
}

// unquote undoes a quoted-string of RFC 7230 if that is what the whole value
// is, which is how writers before 1.0.2 of the binding protected spaces.
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
			return s // it ends before its end, so it is none
		case c == '\\':
			i++
		}
		plain = append(plain, inner[i])
	}
	return string(plain)
}

func (t *texts) unescape(s string) string {
	next := escape(s)
	if next < 0 {
		return s
	}
	start := t.grow(len(s))
	for ; next >= 0; next = escape(s) {
		t.b.WriteString(s[:next])
		t.b.WriteByte(unhex(s[next+1])<<4 | unhex(s[next+2]))
		s = s[next+3:]
	}
	t.b.WriteString(s)
	return t.b.String()[start:]
}

// encode writes a value as a header's: space, quote, percent and all but
// printable ASCII become %XY, byte by byte of UTF-8.
func encode(s string) string {
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

// escape is where the first %XY of s stands, -1 if there is none.
func escape(s string) int {
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

// isURI reports whether s has only what RFC 3986 allows in a URI; whether it is
// one is for Validate to say.
func isURI(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			return false
		}
	}
	return true
}
