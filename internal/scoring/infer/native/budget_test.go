package native

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

var errNoRoom = errors.New("no room")

// purse is a budget.
type purse struct{ left atomic.Int64 }

func (p *purse) Take(bytes int64) error {
	if p.left.Add(-bytes) < 0 {
		p.left.Add(bytes)
		return errNoRoom
	}
	return nil
}

// bloated returns a model of 2 MiB whose rows take a megabyte each: x·W[1,2^18]·V[2^18,1].
func bloated() []byte {
	const wide = 1 << 18
	r := rand.New(rand.NewPCG(1, 1))
	return newGraph().input("x", tensor.Float, tensor.Any, 1).weight("w", random(r, 1, wide)).weight("v", random(r, wide, 1)).
		node("", "MatMul", []string{"x", "w"}, []string{"a"}, nil).node("", "MatMul", []string{"a", "v"}, []string{"y"}, nil).
		output("y", tensor.Float, tensor.Any, 1).file()
}

// The attack: a request of 839 bytes took 262 MiB, and six at once 1.6 GB.
func TestRunsTakeTheirMemoryFromABudget(t *testing.T) {
	p, err := Load(bloated())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(b tensor.Budget, rows int) error {
		in := []tensor.Tensor{{Type: tensor.Float, Shape: []int{rows, 1}, Floats: make([]float32, rows)}}
		return p.RunWithin(b, in, make([]tensor.Tensor, 1))
	}
	rest := heap()
	one := &purse{}
	one.left.Store(10 << 20)
	if err := ask(one, 9); err != nil {
		t.Error(err)
	}
	if taken := 10<<20 - one.left.Load(); taken < 9<<20 || taken > 9<<20+1<<10 {
		t.Errorf("nine rows have taken %d bytes", taken)
	}
	if err := ask(one, 9); !errors.Is(err, errNoRoom) {
		t.Errorf("a run beyond the budget: %v", err)
	}
	all := &purse{} // half of the gateway's room, because of garbage
	all.left.Store(128 << 20)
	var six sync.WaitGroup
	var refused atomic.Int64
	for range 6 {
		six.Go(func() {
			if err := ask(all, 240); errors.Is(err, errNoRoom) {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	six.Wait()
	if refused.Load() != 6 {
		t.Errorf("%d of 6 runs of 240 MiB were refused", refused.Load())
	}
	if used := heap() - rest; used > 256<<20 {
		t.Errorf("the process has taken %d MiB", used>>20)
	}
	if err := ask(nil, 100); err != nil {
		t.Errorf("without a budget: %v", err)
	}
}

// heap returns the bytes that the heap has from the system.
func heap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys - m.HeapReleased)
}
