package oip

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

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

// job is the run of one call.
type job struct {
	model   any // jobs of the same model may be joined; they have the same limit
	run     func(b tensor.Budget, in, out []tensor.Tensor) error
	budget  tensor.Budget // nil without a limit
	in, out []tensor.Tensor
	rows    int
	limit   int // rows of one run
	err     error
	turn    chan []*job // gets the jobs that this one runs; nil if another one has run it
}

func (j *job) runAlone() { j.err = j.run(j.budget, j.in, j.out) }

// joins runs calls of the same model together, if as many runs of it are under way as there are
// processors: a call would have to wait for one of them. So no call waits longer than alone.
type joins struct {
	most int // runs of one model at the same time

	mu  sync.Mutex
	all map[any]*line
}

// line is what one model has to do.
type line struct {
	running int
	waiting []*job
	tried   bool // a joined run has been compared with one alone
	apart   bool // joined answers differ
}

// do runs a job, alone or with others.
func (s *joins) do(j *job) error {
	s.mu.Lock()
	l := s.all[j.model]
	if l == nil {
		l = &line{}
		s.all[j.model] = l
	}
	if l.running < s.most {
		l.running++
		s.mu.Unlock()
		defer s.next(j.model, l)
		j.runAlone()
		return j.err
	}
	j.turn = make(chan []*job, 1)
	l.waiting = append(l.waiting, j)
	s.mu.Unlock()
	if batch := <-j.turn; batch != nil {
		defer s.next(j.model, l)
		l.run(s, batch)
	}
	return j.err
}

// next gives the place of a run to the jobs that wait.
func (s *joins) next(model any, l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.waiting) == 0 {
		if l.running--; l.running == 0 {
			delete(s.all, model)
		}
		return
	}
	first := l.waiting[0]
	n, rows := 1, first.rows
	for ; n < len(l.waiting) && !l.apart && rows+l.waiting[n].rows <= first.limit && first.fits(l.waiting[n]); n++ {
		rows += l.waiting[n].rows
	}
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	first.turn <- batch
}

// fits reports whether the rows of another job can be in the same table.
func (j *job) fits(other *job) bool {
	return slices.EqualFunc(j.in, other.in, func(a, b tensor.Tensor) bool {
		return a.Type == b.Type && len(a.Shape) > 0 && len(a.Shape) == len(b.Shape) && slices.Equal(a.Shape[1:], b.Shape[1:])
	})
}

var errUnlike = errors.New("answers of joined rows are not those of the rows alone")

// run runs jobs together. If that fails, each runs alone: a fault is of one caller's rows, or one
// caller has no room.
func (l *line) run(s *joins, batch []*job) {
	defer func() {
		for _, j := range batch[1:] {
			j.turn <- nil
		}
	}()
	for _, j := range batch {
		j.err = fmt.Errorf("the run of the model was cut off") // if the engine panics
	}
	if len(batch) > 1 {
		err := l.together(s, batch)
		if err == nil {
			return
		}
		if errors.Is(err, errUnlike) {
			s.mu.Lock()
			l.apart = true
			s.mu.Unlock()
		}
	}
	for _, j := range batch {
		j.runAlone()
	}
}

// shared takes memory from the budgets of all jobs, by their rows.
type shared struct {
	batch []*job
	rows  int
}

// Take takes bytes.
func (b shared) Take(bytes int64) error {
	for _, j := range b.batch {
		if j.budget == nil {
			continue
		}
		if err := j.budget.Take(bytes*int64(j.rows)/int64(b.rows) + 1); err != nil {
			return err
		}
	}
	return nil
}

func (l *line) together(s *joins, batch []*job) error {
	rows := 0
	for _, j := range batch {
		rows += j.rows
	}
	budget := shared{batch, rows}
	in, out := make([]tensor.Tensor, len(batch[0].in)), make([]tensor.Tensor, len(batch[0].out))
	for i := range in {
		for _, j := range batch {
			if err := add(&in[i], &j.in[i]); err != nil {
				return err
			}
		}
		if err := budget.Take(int64(in[i].Len()) * int64(valueBytes(in[i].Type))); err != nil {
			return err
		}
	}
	if err := batch[0].run(budget, in, out); err != nil {
		return err
	}
	for i := range out {
		if len(out[i].Shape) == 0 || out[i].Shape[0] != rows || out[i].Len()%rows != 0 {
			return errUnlike
		}
	}
	s.mu.Lock()
	tried := l.tried
	l.tried = true
	s.mu.Unlock()
	from := 0
	for n, j := range batch {
		if n == 0 && !tried {
			if j.runAlone(); j.err != nil {
				return j.err
			}
			for i := range out {
				part := sliceRows(&out[i], 0, j.rows, rows)
				if !alike(&part, &j.out[i]) {
					return errUnlike
				}
			}
		}
		for i := range out {
			copyRows(&j.out[i], sliceRows(&out[i], from, from+j.rows, rows))
		}
		from += j.rows
		j.err = nil
	}
	return nil
}

// copyRows sets a tensor in its own memory, because the joined table belongs to several calls.
func copyRows(to *tensor.Tensor, part tensor.Tensor) {
	to.Type, to.Shape = part.Type, append(to.Shape[:0], part.Shape...)
	to.Floats, to.Doubles = append(to.Floats[:0], part.Floats...), append(to.Doubles[:0], part.Doubles...)
	to.Ints, to.Strings = append(to.Ints[:0], part.Ints...), append(to.Strings[:0], part.Strings...)
}

// likeness is the greatest difference of answers, relative to numbers above 1. The order of additions in a
// product depends on the number of rows.
const likeness = 1e-5

func alike(a, b *tensor.Tensor) bool {
	near := func(x, y float64) bool {
		return x == y || math.Abs(x-y) <= likeness*max(1, math.Abs(x)) || math.IsNaN(x) && math.IsNaN(y)
	}
	return a.Type == b.Type && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Ints, b.Ints) && slices.Equal(a.Strings, b.Strings) &&
		slices.EqualFunc(a.Floats, b.Floats, func(x, y float32) bool { return near(float64(x), float64(y)) }) && slices.EqualFunc(a.Doubles, b.Doubles, near)
}
