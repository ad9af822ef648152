package oip

import (
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Limits of one call's answers. A row of two bytes can have an answer a million times as large, and
// its size is known only afterwards.
const (
	mostRows   = 4096    // rows in one run of a model without a limit
	mostValues = 1 << 21 // values in all answers; about 30 MB as JSON
)

// Run runs the model on as many rows at once as it takes.
func (c *Call) Run() error {
	_, rows, err := c.Inputs()
	if err != nil {
		return err
	}
	most := c.model.MaxRows()
	if most <= 0 || most > mostRows {
		most = mostRows
	}
	if rows > most {
		return c.runParts(rows, most)
	}
	if err := c.runOnce(rows, most); err != nil {
		return c.fault(err)
	}
	return bounded(c.out)
}

// runOnce runs the model on all rows. A run by ONNX Runtime costs the way to its process, however few rows it
// has, so calls are joined. A run by the Go engine is not worth it: it takes a microsecond, or nothing arrives
// meanwhile.
func (c *Call) runOnce(rows, most int) error {
	if c.model.Engine() != infer.EngineONNXRuntime {
		return c.model.RunWithin(c.budget, c.in, c.out)
	}
	return c.server.joins.do(&job{model: c.model, run: c.model.RunWithin, budget: c.budget, in: c.in, out: c.out, rows: rows, limit: most})
}

// rowsOf returns the number of rows, which must be the same in all inputs.
func rowsOf(in []tensor.Tensor) (int, error) {
	rows := 0
	for i := range in {
		if len(in[i].Shape) == 0 {
			continue
		}
		if n := in[i].Shape[0]; rows > 0 && n != rows {
			return 0, invalid("the inputs have %d rows and %d: all must have as many", rows, n)
		}
		rows = in[i].Shape[0]
	}
	return max(rows, 1), nil
}

// runParts runs the model several times, because one run takes only some of the rows.
func (c *Call) runParts(rows, most int) error {
	clear(c.out)
	some, out := make([]tensor.Tensor, len(c.in)), make([]tensor.Tensor, len(c.out))
	for from := 0; from < rows; from += most {
		for i := range c.in {
			some[i] = sliceRows(&c.in[i], from, min(from+most, rows), rows)
		}
		if err := c.model.RunWithin(c.budget, some, out); err != nil {
			return c.fault(err)
		}
		for i := range out {
			if err := add(&c.out[i], &out[i]); err != nil {
				return c.fault(err)
			}
		}
		if err := bounded(c.out); err != nil {
			return err
		}
	}
	return nil
}

// bounded refuses answers that are too large to send.
func bounded(all []tensor.Tensor) error {
	if valuesIn(all) > mostValues {
		return Errorf(TooLarge, "the answer has more than %d values: send fewer rows per request", mostValues)
	}
	return nil
}

// fault is about the model, except if another request may get room.
func (c *Call) fault(err error) error {
	if errors.Is(err, infer.ErrNoRoom) || errors.Is(err, infer.ErrAway) {
		return fmt.Errorf("model %s, version %d: %w", c.Ref().Model, c.Ref().Version, err)
	}
	return invalid("model %s, version %d: %v", c.Ref().Model, c.Ref().Version, err)
}

// sliceRows returns some rows of a tensor. A tensor that is a single value has no rows and
// serves all.
func sliceRows(t *tensor.Tensor, from, to, rows int) tensor.Tensor {
	if len(t.Shape) == 0 {
		return *t
	}
	c := tensor.Tensor{Type: t.Type, Shape: slices.Clone(t.Shape)}
	c.Shape[0] = to - from
	switch t.Type {
	case tensor.Float:
		c.Floats = part(t.Floats, from, to, rows)
	case tensor.Double:
		c.Doubles = part(t.Doubles, from, to, rows)
	case tensor.String:
		c.Strings = part(t.Strings, from, to, rows)
	default:
		c.Ints = part(t.Ints, from, to, rows)
	}
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
	switch t.Type {
	case tensor.Float:
		whole.Floats = append(whole.Floats, t.Floats...)
	case tensor.Double:
		whole.Doubles = append(whole.Doubles, t.Doubles...)
	case tensor.String:
		whole.Strings = append(whole.Strings, t.Strings...)
	default:
		whole.Ints = append(whole.Ints, t.Ints...)
	}
	return nil
}
