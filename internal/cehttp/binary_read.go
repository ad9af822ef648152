package cehttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"tidemill.dev/broker"
)

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
