package oip

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
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

func (h *Handler) infer(r *http.Request, m *infer.Model) (*response, error) {
	if r.Header.Get(binaryHeader) != "" {
		return nil, badf("tensors in binary are not read here: send their data as JSON")
	}
	room := room{infer.BudgetOf(r.Context())}
	q, err := readRequest(r.Body, h.o.MaxBody)
	if err != nil {
		return nil, err
	}
	wanted, err := wantedOf(q.Outputs, m.Outputs())
	if err != nil {
		return nil, err
	}
	in, rows, err := tensorsOf(room, q.Inputs, m.Inputs())
	if err != nil {
		return nil, err
	}
	out, err := runModel(room, m, in, rows)
	if err != nil {
		return nil, err
	}
	if err := room.take(valuesIn(out), jsonValue); err != nil {
		return nil, err
	}
	a := &response{Model: m.Ref().Model, Version: strconv.Itoa(m.Ref().Version), Outputs: []output{}}
	if q.ID != nil {
		a.ID = *q.ID
	}
	for _, i := range wanted {
		a.Outputs = append(a.Outputs, output{m.Outputs()[i].Name, out[i].Shape, datatypeOf(out[i].Type), valuesOf(&out[i])})
	}
	return a, nil
}

// room takes memory from the budget of a request, if it has one.
type room struct{ budget tensor.Budget }

// jsonValue is the memory of a value of an answer as JSON, twice, because the text grows by copies.
const jsonValue = 32

func (b room) take(values, bytes int) error {
	if b.budget == nil {
		return nil
	}
	return b.budget.Take(int64(values) * int64(bytes))
}

// valueBytes is the memory of a value.
func valueBytes(t tensor.Type) int {
	switch t {
	case tensor.Float:
		return 4
	case tensor.String:
		return 32
	}
	return 8
}

func valuesIn(all []tensor.Tensor) (n int) {
	for i := range all {
		t := &all[i]
		n += len(t.Floats) + len(t.Doubles) + len(t.Ints) + len(t.Strings)
	}
	return n
}

// readRequest reads one JSON object, and refuses data after it.
func readRequest(body io.Reader, most int64) (*request, error) {
	text, err := io.ReadAll(io.LimitReader(body, most+1))
	switch {
	case err != nil:
		return nil, badf("read the body: %v", err)
	case int64(len(text)) > most:
		return nil, faultf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes: send fewer rows per request", most)
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

// wantedOf returns the indexes of the requested outputs; all of them if none is
// requested.
func wantedOf(asked []named, outputs []tensor.Spec) (all []int, err error) {
	for i := range outputs {
		if len(asked) == 0 {
			all = append(all, i)
		}
	}
	for _, a := range asked {
		i := slices.IndexFunc(outputs, func(s tensor.Spec) bool { return s.Name == a.Name })
		switch {
		case i < 0:
			return nil, badf("the model has no output %.100q; it has %s", a.Name, namesOf(outputs))
		case slices.Contains(all, i): // an answer would grow with the request's square
			return nil, badf("output %.100q is requested twice", a.Name)
		}
		all = append(all, i)
	}
	return all, nil
}

func namesOf(all []tensor.Spec) string {
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.Name
	}
	return fmt.Sprintf("%q", names)
}

// tensorsOf reads the inputs, in the order of the model's inputs.
func tensorsOf(b room, given []input, specs []tensor.Spec) (in []tensor.Tensor, rows int, err error) {
	in = make([]tensor.Tensor, len(specs))
	seen := make([]bool, len(specs))
	for n := range given {
		g := &given[n]
		i := slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == g.Name })
		switch {
		case i < 0:
			return nil, 0, badf("the model has no input %.100q; it has %s", g.Name, namesOf(specs))
		case seen[i]:
			return nil, 0, badf("input %.100q is given twice", g.Name)
		}
		seen[i] = true
		if err := g.read(b, &specs[i], &in[i]); err != nil {
			return nil, 0, err
		}
	}
	if i := slices.Index(seen, false); i >= 0 {
		return nil, 0, badf("input %q is missing; the model wants %s", specs[i].Name, namesOf(specs))
	}
	rows, err = rowsOf(given, in)
	return in, rows, err
}

// read reads an input and checks it against the model's spec.
func (g *input) read(b room, s *tensor.Spec, t *tensor.Tensor) error {
	if want := datatypeOf(s.Type); g.Datatype != want {
		return badf("input %q: its datatype is %s, not %.40q", s.Name, want, g.Datatype)
	}
	if !fitsSpec(g.Shape, s.Shape) {
		return badf("input %q: its shape is %v, not %v", s.Name, s.Shape, clip(g.Shape))
	}
	// Each value takes at least two bytes, with its separator.
	want, ok := sizeOf(g.Shape, len(g.Data)/2+1)
	if !ok {
		return badf("input %q: data has fewer values than the shape %v", s.Name, clip(g.Shape))
	}
	if err := b.take(want, valueBytes(s.Type)); err != nil {
		return err
	}
	t.Type, t.Shape = s.Type, g.Shape
	return readData(s.Name, g.Data, t, want)
}

// fitsSpec compares a shape with the model's. Any number of rows is fine, also for a model
// that takes one at a time.
func fitsSpec(shape, spec []int) bool {
	if len(shape) != len(spec) {
		return false
	}
	for i, n := range shape {
		if n < 1 || i > 0 && spec[i] >= 0 && spec[i] != n {
			return false
		}
	}
	return true
}

func clip(shape []int) []int { return shape[:min(len(shape), 16)] }

// rowsOf returns the number of rows, which must be the same in all inputs.
func rowsOf(given []input, in []tensor.Tensor) (int, error) {
	rows := 0
	for i := range in {
		if len(in[i].Shape) == 0 {
			continue
		}
		if n := in[i].Shape[0]; rows > 0 && n != rows {
			return 0, badf("the inputs have %d rows and %d: all must have as many", rows, n)
		}
		rows = in[i].Shape[0]
	}
	if len(given) == 0 {
		return 0, badf("inputs is missing, or is empty")
	}
	return max(rows, 1), nil
}

// Limits of one request's answers. A row of two bytes can have an answer a million
// times as large, and its size is known only afterwards.
const (
	mostRows   = 4096    // rows in one run of a model without a limit
	mostValues = 1 << 21 // values in all answers; about 30 MB as JSON
)

// runModel runs the model on as many rows at once as it takes.
func runModel(b room, m *infer.Model, in []tensor.Tensor, rows int) ([]tensor.Tensor, error) {
	most := m.MaxRows()
	if most <= 0 || most > mostRows {
		most = mostRows
	}
	if rows <= most {
		out := make([]tensor.Tensor, len(m.Outputs()))
		if err := m.RunWithin(b.budget, in, out); err != nil {
			return nil, unanswered(m, err)
		}
		return out, bounded(out)
	}
	whole := make([]tensor.Tensor, len(m.Outputs()))
	for from := 0; from < rows; from += most {
		some, out := make([]tensor.Tensor, len(in)), make([]tensor.Tensor, len(whole))
		for i := range in {
			some[i] = sliceRows(&in[i], from, min(from+most, rows), rows)
		}
		if err := m.RunWithin(b.budget, some, out); err != nil {
			return nil, unanswered(m, err)
		}
		for i := range out {
			if err := add(&whole[i], &out[i]); err != nil {
				return nil, unanswered(m, err)
			}
		}
		if err := bounded(whole); err != nil {
			return nil, err
		}
	}
	return whole, nil
}

// bounded refuses answers that are too large to send.
func bounded(all []tensor.Tensor) error {
	if valuesIn(all) > mostValues {
		return faultf(http.StatusRequestEntityTooLarge, "the answer has more than %d values: send fewer rows per request", mostValues)
	}
	return nil
}

// unanswered is about the model, except if another request may get room.
func unanswered(m *infer.Model, err error) error {
	if errors.Is(err, infer.ErrNoRoom) || errors.Is(err, infer.ErrAway) {
		return fmt.Errorf("model %s, version %d: %w", m.Ref().Model, m.Ref().Version, err)
	}
	return badf("model %s, version %d: %v", m.Ref().Model, m.Ref().Version, err)
}

// sliceRows returns some rows of a tensor. A tensor that is a single value has no rows and
// serves all.
func sliceRows(t *tensor.Tensor, from, to, rows int) tensor.Tensor {
	if len(t.Shape) == 0 {
		return *t
	}
	c := tensor.Tensor{Type: t.Type, Shape: slices.Clone(t.Shape)}
	c.Shape[0] = to - from
	c.Floats, c.Doubles = part(t.Floats, from, to, rows), part(t.Doubles, from, to, rows)
	c.Ints, c.Strings = part(t.Ints, from, to, rows), part(t.Strings, from, to, rows)
	return c
}

func part[T any](values []T, from, to, rows int) []T {
	width := len(values) / rows
	return values[from*width : to*width]
}

// add appends rows to a whole tensor.
func add(whole, t *tensor.Tensor) error {
	if whole.Shape == nil {
		whole.Type, whole.Shape = t.Type, slices.Clone(t.Shape)
	} else {
		if len(t.Shape) == 0 || !slices.Equal(t.Shape[1:], whole.Shape[1:]) {
			return errors.New("its answers to different rows are of different shapes; ask for one row at a time")
		}
		whole.Shape[0] += t.Shape[0]
	}
	whole.Floats, whole.Doubles = append(whole.Floats, t.Floats...), append(whole.Doubles, t.Doubles...)
	whole.Ints, whole.Strings = append(whole.Ints, t.Ints...), append(whole.Strings, t.Strings...)
	return nil
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
