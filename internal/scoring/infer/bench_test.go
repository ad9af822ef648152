package infer

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkUse measures how long a batch needs to get a model that is in memory.
func BenchmarkUse(b *testing.B) {
	s := newToys()
	c := s.open(b, Options{})
	refs := make([]*Ref, 1000)
	for i := range refs {
		refs[i] = s.put(i, 4096)
		useModel(b, c, refs[i])
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for i := 0; p.Next(); i++ {
			c.Use(refs[i%len(refs)]).Release()
		}
	})
}

// BenchmarkCold measures how long it takes to load a model from the disk: a network of 137 kB, and
// 100 trees of depth 6 in 390 kB.
func BenchmarkCold(b *testing.B) {
	b.Run("network", func(b *testing.B) { loadCold(b, perceptron(1, 512, 64, 20)) })
	b.Run("trees", func(b *testing.B) { loadCold(b, forest(1, 100, 6, 30)) })
}

func loadCold(b *testing.B, file []byte) {
	c, err := Open(Options{Dir: b.TempDir(), Memory: 1 << 20, Fetch: fetchOf(map[string][]byte{ModelFile: file})})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	refs := make([]*Ref, 200)
	for i := range refs {
		refs[i] = &Ref{Model: fmt.Sprint("intent/", i), Version: 1, Artifact: fmt.Sprintf("%064x", i)}
		useModel(b, c, refs[i])
	}
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	var took, cpu []time.Duration
	for i := 0; b.Loop(); i++ {
		begun, before := time.Now(), used(b)
		useModel(b, c, refs[i%len(refs)])
		took, cpu = append(took, time.Since(begun)), append(cpu, used(b)-before)
	}
	for name, times := range map[string][]time.Duration{"": took, "cpu-": cpu} {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), name+"p50-µs")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), name+"p99-µs")
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
