package infer

import (
	"fmt"
	"slices"
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

// BenchmarkCold measures how long it takes to load a model of 137 kB from the disk.
func BenchmarkCold(b *testing.B) {
	file := perceptron(1, 512, 64, 20)
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
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begun := time.Now()
		useModel(b, c, refs[i%len(refs)])
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
