package features

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/jsontensor"
)

// attribute reads a slot from an event's attribute.
func (r *reader) attribute(v *broker.View, index int) error {
	s := &r.plan.slots[index]
	said, there := lookUp(v, s.at.attribute)
	if !there && r.readDefault(index) {
		return nil
	}
	if !there {
		return s.fault("is not in the event")
	}
	return r.readText(index, said)
}

// lookUp finds an attribute. If the event is not on a stream yet, key is the value
// that the broker will derive from the attributes.
func lookUp(v *broker.View, name string) (string, bool) {
	if said, there := v.Attribute(name); there || name != "key" {
		return said, there
	}
	if v.Key != nil {
		return jsonscan.AsText(v.Key), true
	}
	if said, there := v.Attribute("partitionkey"); there {
		return said, true
	}
	return v.Subject, v.Subject != ""
}

// readText reads a slot from unquoted text: as a string, or as the number that the text spells.
func (r *reader) readText(index int, said string) error {
	s, t := &r.plan.slots[index], &r.in[index]
	r.begin(s, t)
	if !isSingle(t) || !r.literal(t, said) {
		return s.fault("is %s", quoted(said))
	}
	return nil
}

// literal only reads the text's bytes, so it needs no copy of them.
func (r *reader) literal(t *tensor.Tensor, said string) bool {
	if t.Type != tensor.String {
		return jsontensor.Value(unsafe.Slice(unsafe.StringData(said), len(said)), 0, t, r.at) == len(said)
	}
	t.Strings[r.at] = said
	return utf8.ValidString(said)
}

// opaque reads the data of an event that is not JSON, as one text.
func (r *reader) opaque(v *broker.View) error {
	for i := range r.plan.slots {
		s := &r.plan.slots[i]
		if s.at.attribute != "" {
			continue
		}
		if v.Data == nil {
			return s.fault("is not there: the event has no data")
		}
		if len(s.at.steps) > 0 {
			return s.fault("is not there: the data is %s and not JSON; map data, which is all of it", quoted(v.DataContentType))
		}
		if err := r.readText(i, jsonscan.AsText(v.Data)); err != nil {
			return err
		}
	}
	return nil
}

// quoted prints a text in an error, cut if it is long.
func quoted(s string) string {
	const most = 40
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:most]) + "…"
}

// isJSON follows CloudEvents: */json, */*+json, and an absent content type.
func isJSON(contentType string) bool {
	if contentType == "application/json" || contentType == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}

// fault reports the value that was found for a slot and the kind that the model wants.
func (s *slot) fault(format string, args ...any) error {
	return fmt.Errorf("read input %q: %s %s; %s", s.Name, s.path, fmt.Sprintf(format, args...), s.expectedValues())
}

// expectedValues describes the values that a row of a slot consists of.
func (s *slot) expectedValues() string {
	what := "number"
	switch s.Type {
	case tensor.String:
		what = "text"
	case tensor.Bool:
		what = "boolean"
	case tensor.Int32:
		what = "whole number of 32 bits"
	case tensor.Int64:
		what = "whole number"
	}
	var sizes []string
	for _, n := range s.Shape[1:] {
		switch {
		case n < 0:
			sizes = append(sizes, "n")
		case n != 1 || len(s.Shape) > 2:
			sizes = append(sizes, strconv.Itoa(n))
		}
	}
	if len(sizes) == 0 {
		return "one " + what + " is wanted"
	}
	return "an array of " + strings.Join(sizes, "×") + " is wanted, each a " + what
}

// fault explains why an event could not be read. fault is slow, because it decodes the whole event.
func (r *reader) fault(v *broker.View) error {
	if v.Data == nil {
		return errors.New("read the data: the event has none")
	}
	decoder := json.NewDecoder(bytes.NewReader(v.Data))
	decoder.UseNumber()
	var data any
	if err := json.Unmarshal(v.Data, new(json.RawMessage)); err != nil {
		return fmt.Errorf("read the data: it is not valid JSON: %w", err)
	}
	if err := decoder.Decode(&data); err != nil {
		return fmt.Errorf("read the data as JSON: %w", err)
	}
	index := r.missing()
	if index < 0 {
		return errors.New("read the data: it is not valid JSON")
	}
	s := &r.plan.slots[index]
	if r.row > 0 && r.plan.readsAlone(v) {
		return fmt.Errorf("read input %q: %s %w", s.Name, s.path, ErrLength)
	}
	found, where := walkSteps(data, s.at.steps)
	switch where {
	case "":
	case "there is no " + s.path: // its path says that already
		return s.fault("is not in the event")
	default:
		return s.fault("is not in the event: %s", where)
	}
	return s.fault("is %s", describe(found, s.Type))
}

// readsAlone reports whether an event can be read as the first row.
func (p *Plan) readsAlone(v *broker.View) bool {
	in := make([]tensor.Tensor, len(p.slots))
	p.Begin(in, 1)
	return p.Read(v, in, 0) == nil
}

// walkSteps follows the steps into data. If a step is missing, where is its place.
func walkSteps(data any, steps []step) (found any, where string) {
	place := rootData
	for _, s := range steps {
		var there bool
		switch of := data.(type) {
		case map[string]any:
			if s.element {
				return nil, place + " is an object, not an array"
			}
			data, there = of[s.name]
		case []any:
			if !s.element {
				return nil, place + " is an array, not an object"
			}
			if there = s.index < len(of); there {
				data = of[s.index]
			}
		default:
			return nil, place + " is " + describe(data, tensor.String)
		}
		if place += s.String(); !there {
			return nil, "there is no " + place
		}
	}
	return data, ""
}

// describe names a value for a user whose model wants values of another type.
func describe(v any, wanted tensor.Type) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return "the number " + v.String()
	case string:
		return "the text " + quoted(v)
	case []any:
		return describeArray(v, wanted)
	}
	return "an object"
}

func describeArray(v []any, wanted tensor.Type) string {
	said := "an array of " + strconv.Itoa(len(v))
	for i, e := range v {
		_, text := e.(string)
		_, nested := e.([]any)
		_, object := e.(map[string]any)
		if nested && i == 0 {
			return said + ", of which the first is " + describe(e, wanted)
		}
		if e == nil || nested || object || text != (wanted == tensor.String) {
			return said + ", of which [" + strconv.Itoa(i) + "] is " + describe(e, wanted)
		}
	}
	return said
}
