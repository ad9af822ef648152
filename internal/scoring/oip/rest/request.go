package rest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// request is an inference request. The protocol's extensions (parameters) are ignored.
type request struct {
	ID      *string `json:"id"`
	Inputs  []input `json:"inputs"`
	Outputs []named `json:"outputs"`
}

type input struct {
	Name     string          `json:"name"`
	Shape    []int           `json:"shape"`
	Datatype string          `json:"datatype"`
	Data     json.RawMessage `json:"data"`
}

type named struct {
	Name string `json:"name"`
}

type response struct {
	Model   string   `json:"model_name"`
	Version string   `json:"model_version"`
	ID      string   `json:"id,omitempty"`
	Outputs []output `json:"outputs"`
}

type output struct {
	Name     string `json:"name"`
	Shape    []int  `json:"shape"`
	Datatype string `json:"datatype"`
	Data     any    `json:"data"`
}

// binaryHeader belongs to the extension for binary tensors after the JSON, which is not
// supported.
const binaryHeader = "Inference-Header-Content-Length"

func (h *Handler) infer(r *http.Request, what target) (*response, error) {
	if r.Header.Get(binaryHeader) != "" {
		return nil, badf("tensors in binary are not read here: send their data as JSON")
	}
	c, err := h.o.Server.Begin(r.Context(), what.model, what.version)
	if err != nil {
		return nil, err
	}
	defer c.End()
	q, err := readRequest(r.Body, h.o.MaxBody)
	if err != nil {
		return nil, err
	}
	if err := q.give(c); err != nil {
		return nil, err
	}
	if err := c.Run(); err != nil {
		return nil, err
	}
	if err := c.Take(c.Values(), jsonValue); err != nil {
		return nil, err
	}
	a := &response{Model: c.Ref().Model, Version: strconv.Itoa(c.Ref().Version), Outputs: []output{}}
	if q.ID != nil {
		a.ID = *q.ID
	}
	for s, t := range c.Outputs {
		a.Outputs = append(a.Outputs, output{s.Name, slices.Clone(t.Shape), oip.Datatype(t.Type), valuesOf(t)})
	}
	return a, nil
}

// give gives the request to a call.
func (q *request) give(c *oip.Call) error {
	for _, o := range q.Outputs {
		if err := c.Want(o.Name); err != nil {
			return err
		}
	}
	for i := range q.Inputs {
		if err := q.Inputs[i].read(c); err != nil {
			return err
		}
	}
	return nil
}

// read gives an input to a call.
func (g *input) read(c *oip.Call) error {
	t, err := c.Input(g.Name, g.Datatype, g.Shape, len(g.Data)/2+1) // each value takes at least two bytes, with its separator
	if err != nil {
		return err
	}
	want := t.Len()
	t.Resize(0)
	return readData(g.Name, g.Data, t, want)
}

// jsonValue is the memory of a value of an answer as JSON, twice, because the text grows by copies.
const jsonValue = 32

// readRequest reads one JSON object, and refuses data after it.
func readRequest(body io.Reader, most int64) (*request, error) {
	text, err := io.ReadAll(io.LimitReader(body, most+1))
	switch {
	case err != nil:
		return nil, badf("read the body: %v", err)
	case int64(len(text)) > most:
		return nil, oip.Errorf(oip.TooLarge, "the body has more than %d bytes: send fewer rows per request", most)
	}
	q := &request{}
	if err := json.Unmarshal(text, q); err != nil {
		var other *json.UnmarshalTypeError
		if errors.As(err, &other) { // the decoder's message names Go types
			return nil, badf("the body is not an inference request: %s is not expected at byte %d (%q); send one such as {\"inputs\":[{\"name\":\"x\",\"shape\":[1,2],\"datatype\":\"FP32\",\"data\":[1,2]}]}", other.Value, other.Offset, other.Field)
		}
		return nil, badf("the body is not an inference request: %v", err)
	}
	return q, nil
}

// valuesOf returns a tensor's values for JSON, in one list.
func valuesOf(t *tensor.Tensor) any {
	switch t.Type {
	case tensor.Float:
		return orEmpty(t.Floats)
	case tensor.Double:
		return orEmpty(t.Doubles)
	case tensor.String:
		return orEmpty(t.Strings)
	case tensor.Bool:
		all := make([]bool, len(t.Ints))
		for i, n := range t.Ints {
			all[i] = n != 0
		}
		return all
	}
	return orEmpty(t.Ints)
}

func orEmpty[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}
