package pick

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/internal/infer/tensor"
)

// fault says what was found of a slot, and what is wanted.
func (s *slot) fault(format string, args ...any) error {
	return fmt.Errorf("read input %q: %s %s; %s", s.Name, s.path, fmt.Sprintf(format, args...), s.wanted())
}

// wanted describes what a row of a slot consists of.
func (s *slot) wanted() string {
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

// fault finds out what is wrong with an event that could not be read. It takes its
// time: it decodes everything.
func (r *reader) fault(v *broker.View) error {
	if v.Data == nil {
		return errors.New("read the data: the event has none")
	}
	decoder := json.NewDecoder(bytes.NewReader(v.Data))
	decoder.UseNumber()
	var data any
	if err := json.Unmarshal(v.Data, new(json.RawMessage)); err != nil {
		return fmt.Errorf("read the data: it is no valid JSON: %w", err)
	}
	if err := decoder.Decode(&data); err != nil {
		return fmt.Errorf("read the data as JSON: %w", err)
	}
	index := r.missing()
	if index < 0 {
		return errors.New("read the data: it is no valid JSON")
	}
	s := &r.plan.slots[index]
	if r.row > 0 && r.plan.readsAlone(v) {
		return fmt.Errorf("read input %q: %s %w", s.Name, s.path, ErrLength)
	}
	found, where := follow(data, s.at.steps)
	if where != "" {
		return s.fault("is not in the event: %s", where)
	}
	return s.fault("is %s", describe(found, s.Type))
}

// readsAlone tells whether an event can be read with no other beside it.
func (p *Plan) readsAlone(v *broker.View) bool {
	in := make([]tensor.Tensor, len(p.slots))
	p.Begin(in, 1)
	return p.Read(v, in, 0) == nil
}

// follow goes down the steps. Where it cannot it says so.
func follow(data any, steps []step) (found any, where string) {
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

// describe says what a value is, for somebody who wants values of a type.
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
