package broker

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// FromEvent turns an sdk-go event into a view with memory of its own. What it
// returns passes [View.Validate]. Extensions come in the order of their names,
// and in text form whatever their type.
func FromEvent(e event.Event) (View, error) {
	c, ok := e.Context.(*event.EventContextV1)
	if !ok {
		return View{}, contextFault(e.Context)
	}
	for _, name := range slices.Sorted(maps.Keys(e.FieldErrors)) {
		return View{}, attributeError(name, e.FieldErrors[name]) // a setter refused it
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

// Event is the view as an sdk-go event, which outlives the bytes that the view
// points into. Extensions are strings. The record's key and its foreign headers
// have no place in it.
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

// needsBase64 tells sdk-go how to write the data as JSON, should it come to
// that. It takes +json types for text, which base64 avoids.
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
