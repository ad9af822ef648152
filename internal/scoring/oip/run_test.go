package oip

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// engineOfTests doubles numbers, and remembers the rows of its runs. The first run waits until it may end.
type engineOfTests struct {
	mu   sync.Mutex
	rows []int
	hold chan struct{}
	mix  bool // adds the number of rows to each answer, as no model for single rows does
}

func (e *engineOfTests) run(b tensor.Budget, in, out []tensor.Tensor) error {
	e.mu.Lock()
	e.rows = append(e.rows, in[0].Shape[0])
	first := len(e.rows) == 1
	e.mu.Unlock()
	if first {
		<-e.hold
	}
	if b != nil {
		if err := b.Take(int64(8 * in[0].Len())); err != nil {
			return err
		}
	}
	out[0] = tensor.Tensor{Type: tensor.Float, Shape: slices.Clone(in[0].Shape)}
	for _, v := range in[0].Floats {
		if v < 0 {
			return errors.New("a negative number")
		}
		if e.mix {
			v += float32(in[0].Shape[0])
		}
		out[0].Floats = append(out[0].Floats, 2*v)
	}
	return nil
}

func (e *engineOfTests) job(budget tensor.Budget, values ...float32) *job {
	return &job{model: e, run: e.run, budget: budget, rows: len(values), limit: 8, out: make([]tensor.Tensor, 1),
		in: []tensor.Tensor{{Type: tensor.Float, Shape: []int{len(values), 1}, Floats: values}}}
}

// together runs the first job, and the others while it runs. It returns the rows of each run, the first
// excepted.
func (e *engineOfTests) together(t *testing.T, first *job, others ...*job) []int {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		e.hold = make(chan struct{})
		s := &joins{most: 1, all: map[any]*line{}}
		var all sync.WaitGroup
		for _, j := range append([]*job{first}, others...) {
			all.Go(func() { _ = s.do(j) })
			synctest.Wait()
		}
		close(e.hold)
		all.Wait()
		if len(s.all) > 0 {
			t.Errorf("%d lines are left", len(s.all))
		}
	})
	return e.rows[1:]
}

func wantDoubled(t *testing.T, all ...*job) {
	t.Helper()
	for i, j := range all {
		if j.err != nil {
			t.Errorf("job %d: %v", i, j.err)
			continue
		}
		for n, v := range j.in[0].Floats {
			if len(j.out[0].Floats) != j.rows || j.out[0].Floats[n] != 2*v {
				t.Errorf("job %d: %v gives %v", i, j.in[0].Floats, j.out[0].Floats)
			}
		}
	}
}

func TestCallsAreJoinedWhileAModelRuns(t *testing.T) {
	t.Parallel()
	e := &engineOfTests{}
	all := []*job{e.job(nil, 1), e.job(nil, 2, 3), e.job(nil, 4), e.job(nil, 5, 6, 7), e.job(nil, 8, 9, 10), e.job(nil, 11)}
	// The first joined run is compared with the first of its jobs alone.
	if rows := e.together(t, all[0], all[1:]...); !slices.Equal(rows, []int{6, 2, 4}) {
		t.Errorf("rows of the runs: %v", rows)
	}
	wantDoubled(t, all...)
}

// A fault of one caller's rows is the error of that caller alone.
func TestAJoinedFaultIsOneCallers(t *testing.T) {
	t.Parallel()
	e := &engineOfTests{}
	bad := e.job(nil, -1)
	good := []*job{e.job(nil, 1), e.job(nil, 2), e.job(nil, 3)}
	e.together(t, good[0], good[1], bad, good[2])
	wantDoubled(t, good...)
	if bad.err == nil || bad.err.Error() != "a negative number" {
		t.Errorf("%v", bad.err)
	}
}

// A model whose answers depend on the other rows gets each caller's rows alone.
func TestRowsThatDependOnOthersAreNotJoined(t *testing.T) {
	t.Parallel()
	e := &engineOfTests{mix: true}
	all := []*job{e.job(nil, 1), e.job(nil, 2), e.job(nil, 3), e.job(nil, 4)}
	e.together(t, all[0], all[1:]...)
	for _, j := range all {
		if j.err != nil || j.out[0].Floats[0] != 2*(j.in[0].Floats[0]+1) {
			t.Errorf("%v, %v", j.out[0].Floats, j.err)
		}
	}
}

// bytesLeft is a budget.
type bytesLeft struct{ n int64 }

func (b *bytesLeft) Take(bytes int64) error {
	if b.n -= bytes; b.n < 0 {
		return fmt.Errorf("%w: a test", infer.ErrNoRoom)
	}
	return nil
}

// A caller without room does not take the room of others, and does not fail them.
func TestBudgetsOfJoinedCallsAreTheirOwn(t *testing.T) {
	t.Parallel()
	e := &engineOfTests{}
	rich, poor := &bytesLeft{1 << 20}, &bytesLeft{7}
	all := []*job{e.job(nil, 1), e.job(rich, 2), e.job(rich, 3)}
	none := e.job(poor, 4)
	e.together(t, all[0], all[1], none, all[2])
	wantDoubled(t, all...)
	if !errors.Is(none.err, infer.ErrNoRoom) {
		t.Errorf("%v", none.err)
	}
}
