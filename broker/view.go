package broker

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/jsonscan"
)

// Header is a header of a Kafka record.
type Header = wire.Header

// Attribute is one extension attribute in CloudEvents' canonical text form, whatever its type.
type Attribute struct {
	Name  string // a-z and 0-9
	Value string
}

// View is one CloudEvent 1.0 as a flat struct. The hot path reads and publishes views; [View.Event]
// and [FromEvent] convert to and from sdk-go's event.
//
// A view that was read points into the bytes that it was read from, and is valid as long as these
// bytes. Use [View.Clone] for a view that must live longer. An empty string is an absent attribute.
// There is no field for specversion, which is always 1.0.
type View struct {
	ID              string
	Source          string
	Type            string
	Subject         string
	DataContentType string
	DataSchema      string
	Time            string // RFC 3339, as its publisher wrote it

	Extensions []Attribute
	Data       []byte // nil means no data

	// Key is the record's key. If it is nil, the key of a published event is its partitionkey, else
	// its subject.
	Key []byte
	// Foreign are the headers that are not attributes. They are published unchanged.
	Foreign []Header
}

// Attribute returns the value of a core or extension attribute by its name.
func (v *View) Attribute(name string) (string, bool) {
	if name == attrSpecVersion {
		return specVersion, true
	}
	if field := v.coreField(name); field != nil {
		return *field, *field != ""
	}
	if i := v.extensionIndex(name); i >= 0 {
		return v.Extensions[i].Value, true
	}
	return "", false
}

// Set sets a core or extension attribute by its name; an empty value unsets a core attribute.
// specversion can only be 1.0. Set checks the name, and [View.Validate] checks the value.
func (v *View) Set(name, value string) error {
	if name == attrSpecVersion {
		return versionFault(value)
	}
	return v.set(name, value)
}

// coreField returns the field that holds a core attribute, or nil for another name. Only this
// function maps names to fields.
func (v *View) coreField(name string) *string {
	switch name {
	case "id":
		return &v.ID
	case "source":
		return &v.Source
	case "type":
		return &v.Type
	case "subject":
		return &v.Subject
	case "time":
		return &v.Time
	case "dataschema":
		return &v.DataSchema
	case "datacontenttype":
		return &v.DataContentType
	}
	return nil
}

// extensionIndex returns the index of an extension, or -1 if the view has no extension of that
// name. A view has only a few extensions, so a scan is faster than a map.
func (v *View) extensionIndex(name string) int {
	for i := range v.Extensions {
		if v.Extensions[i].Name == name {
			return i
		}
	}
	return -1
}

// setExtension replaces an earlier value, so that the last of two headers with one name counts, as
// in sdk-go and Kafka's Headers.lastHeader.
func (v *View) setExtension(name, value string) {
	if i := v.extensionIndex(name); i >= 0 {
		v.Extensions[i].Value = value
		return
	}
	v.Extensions = append(v.Extensions, Attribute{name, value})
}

// reset empties the view and keeps its slices for the next event.
func (v *View) reset() {
	*v = View{Extensions: v.Extensions[:0], Foreign: v.Foreign[:0]}
}

// recordKey returns the key for publishing: the view's Key, else its partitionkey, else its
// subject, else nil.
func (v *View) recordKey() []byte {
	if v.Key != nil {
		return v.Key
	}
	if i := v.extensionIndex(attrPartitionKey); i >= 0 && v.Extensions[i].Value != "" {
		return toBytes(v.Extensions[i].Value)
	}
	if v.Subject != "" {
		return toBytes(v.Subject)
	}
	return nil
}

// Clone copies the view into separate memory, with three allocations at most, however many
// attributes it has.
func (v *View) Clone() View {
	a := make(arena, 0, v.size())
	c := View{
		ID: a.text(v.ID), Source: a.text(v.Source), Type: a.text(v.Type), Subject: a.text(v.Subject),
		DataContentType: a.text(v.DataContentType), DataSchema: a.text(v.DataSchema), Time: a.text(v.Time),
		Data: a.bytes(v.Data), Key: a.bytes(v.Key),
	}
	if len(v.Extensions) > 0 {
		c.Extensions = make([]Attribute, len(v.Extensions))
	}
	for i, x := range v.Extensions {
		c.Extensions[i] = Attribute{a.text(x.Name), a.text(x.Value)}
	}
	if len(v.Foreign) > 0 {
		c.Foreign = make([]Header, len(v.Foreign))
	}
	for i, h := range v.Foreign {
		c.Foreign[i] = Header{Key: a.text(h.Key), Value: a.bytes(h.Value)}
	}
	return c
}

func (v *View) size() int {
	n := len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) +
		len(v.DataContentType) + len(v.DataSchema) + len(v.Time) + len(v.Data) + len(v.Key)
	for _, x := range v.Extensions {
		n += len(x.Name) + len(x.Value)
	}
	for _, h := range v.Foreign {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// arena is one allocation that many copies share. Its size is enough for all of them, so that no
// append moves the earlier copies.
type arena []byte

func (a *arena) text(s string) string {
	if s == "" {
		return ""
	}
	start := len(*a)
	*a = append(*a, s...)
	return toText((*a)[start:])
}

// bytes limits the capacity of its result, so that an append to it cannot overwrite the next copy.
// Nil stays nil, because absent data differs from empty data.
func (a *arena) bytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	start := len(*a)
	*a = append(*a, b...)
	return (*a)[start:len(*a):len(*a)]
}

// AttributeError names the invalid attribute of an event. Code that answers a publisher can get the
// name alone, with [errors.As] and an interface with the method Attribute.
type AttributeError struct {
	Name string // name as received, possibly hostile
	Err  error
}

func attributeError(name string, err error) error { return &AttributeError{Name: name, Err: err} }

// Error quotes and shortens a name that no attribute can have.
func (e *AttributeError) Error() string {
	name := e.Name
	if nameFault(name) != nil {
		name = clip(name)
	}
	return "attribute " + name + ": " + e.Err.Error()
}

// Unwrap returns the fault of the attribute.
func (e *AttributeError) Unwrap() error { return e.Err }

// Attribute returns the name, shortened if no attribute can have it.
func (e *AttributeError) Attribute() string {
	if nameFault(e.Name) == nil || len(e.Name) <= nameOfNoEventShown {
		return strings.ToValidUTF8(e.Name, "\uFFFD")
	}
	return strings.ToValidUTF8(e.Name[:nameOfNoEventShown], "\uFFFD") + "…"
}

// FromEvent converts an sdk-go event to a view with separate memory, and checks it with
// [View.Validate]. Extensions are sorted by name and in text form.
func FromEvent(e event.Event) (View, error) {
	c, ok := e.Context.(*event.EventContextV1)
	if !ok {
		return View{}, contextFault(e.Context)
	}
	for _, name := range slices.Sorted(maps.Keys(e.FieldErrors)) {
		return View{}, attributeError(name, e.FieldErrors[name]) // error that the event's setter recorded
	}
	v := View{ID: c.ID, Source: c.Source.String(), Type: c.Type, Data: bytes.Clone(e.DataEncoded)}
	if c.Subject != nil {
		v.Subject = *c.Subject
	}
	if c.DataContentType != nil {
		v.DataContentType = *c.DataContentType
	}
	if c.DataSchema != nil {
		v.DataSchema = c.DataSchema.String()
	}
	if c.Time != nil && !c.Time.IsZero() {
		v.Time = c.Time.String()
	}
	for _, name := range slices.Sorted(maps.Keys(c.Extensions)) {
		value, err := types.Format(c.Extensions[name])
		if err != nil {
			return View{}, attributeError(name, err)
		}
		v.Extensions = append(v.Extensions, Attribute{name, value})
	}
	return v, v.Validate()
}

func contextFault(c event.EventContext) error {
	if c == nil {
		return versionFault("")
	}
	return versionFault(c.GetSpecVersion())
}

// Event converts the view to an sdk-go event, which outlives the bytes that the view points into.
// Extensions become strings. The record's key and the foreign headers are left out.
func (v *View) Event() (event.Event, error) {
	v = new(v.Clone())
	source, err := url.Parse(v.Source)
	if err != nil {
		return event.Event{}, attributeError("source", errReference)
	}
	c := &event.EventContextV1{ID: v.ID, Type: v.Type, Source: types.URIRef{URL: *source},
		Subject: optional(v.Subject), DataContentType: optional(v.DataContentType)}
	if c.DataSchema = types.ParseURI(v.DataSchema); c.DataSchema == nil && v.DataSchema != "" {
		return event.Event{}, attributeError("dataschema", errAbsolute)
	}
	if c.Time, err = types.ParseTimestamp(strings.ToUpper(v.Time)); err != nil {
		return event.Event{}, attributeError("time", fmt.Errorf("%w: %s", errTime, clip(v.Time)))
	}
	for _, x := range v.Extensions {
		if err := c.SetExtension(x.Name, x.Value); err != nil {
			return event.Event{}, attributeError(x.Name, err)
		}
	}
	return event.Event{Context: c, DataEncoded: v.Data, DataBase64: v.needsBase64()}, nil
}

// needsBase64 tells sdk-go how to write the data as JSON. sdk-go treats +json types as text, which
// base64 avoids.
func (v *View) needsBase64() bool {
	switch v.dataForm() {
	case formBinary:
		return true
	case formJSON:
		media, _ := mediaType(v.DataContentType)
		return strings.HasSuffix(media, "+json")
	}
	return false
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// dataForm is the way in which the JSON event format carries data.
type dataForm int

const (
	formNone dataForm = iota
	formJSON
	formText
	formBinary
)

// maxWrapping is the largest nesting depth of an event inside other JSON, including the event's own
// level. Data whose own nesting would then exceed the limit is written as base64, because otherwise
// the whole document could not be read.
const maxWrapping = 16

// dataForm follows datacontenttype only if the bytes have that type. Data that is declared as JSON
// but is not JSON is written as base64, unchanged.
func (v *View) dataForm() dataForm {
	if v.Data == nil {
		return formNone
	}
	media, params := mediaType(v.DataContentType)
	switch {
	case isJSON(media) && utf8.Valid(v.Data) && jsonscan.ValidInside(v.Data, maxWrapping):
		return formJSON
	case strings.HasPrefix(media, "text/") && !isJSON(media) && isUTF8(params["charset"]) && utf8.Valid(v.Data):
		return formText
	}
	return formBinary
}

func isUTF8(charset string) bool {
	return charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}
