package oip

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"tidemill.dev/internal/scoring/infer/tensor"
)

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
