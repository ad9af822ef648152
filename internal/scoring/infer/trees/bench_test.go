package trees

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// fullForest returns 100 trees of a depth, as boosting libraries make them.
func fullForest(r *rand.Rand, depth, features int) *Forest {
	f := &Forest{Targets: 1}
	inner := int32(1)<<depth - 1
	for range 100 {
		first := int32(len(f.Nodes))
		f.Roots = append(f.Roots, first)
		for i := range 2*inner + 1 {
			n := Node{}
			if i < inner {
				n = Node{Mode: LessOrEqual, Value: float64(float32(r.NormFloat64())), Feature: int32(r.IntN(features)), True: first + 2*i + 1, False: first + 2*i + 2}
			} else {
				f.Votes = append(f.Votes, Vote{Node: first + i, Value: r.NormFloat64()})
			}
			f.Nodes = append(f.Nodes, n)
		}
	}
	return f
}

// BenchmarkRun measures the processor time of a row without the rest of a model.
func BenchmarkRun(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	e, err := Build[float32](fullForest(r, 6, 30))
	if err != nil {
		b.Fatal(err)
	}
	const all = 1 << 10
	x := make([]float32, all*30)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	var s Scratch
	sums, seen := make([]float32, all), make([]bool, all)
	for _, rows := range []int{1, 4, 8, 64, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			begin := used(b)
			for i := 0; b.Loop(); i = (i + rows) % all {
				e.Run(&s, rows, 30, x[i*30:], sums, seen)
			}
			b.ReportMetric(float64(used(b)-begin)/float64(b.N*rows), "cpu-ns/row")
		})
	}
}

// used returns the processor time of this process, because the wall clock includes other processes.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
