package infer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// BenchmarkTwentyThousandForests keeps 20,000 models of 100 trees of depth 6 in memory and uses them in
// random order. It measures the memory of the models and of the process, a load of a fetched file, and
// a use with an answer. BenchmarkCold has loads from the disk. A node has eight bytes: the threshold or weight, and where the
// children and the feature are.
//
//	go test -run '^$' -bench TwentyThousandForests -benchtime 1x ./internal/scoring/infer
func BenchmarkTwentyThousandForests(b *testing.B) {
	const models, trees, depth, features = 20_000, 100, 6, 30
	made := make([][]byte, 50)
	for i := range made {
		made[i] = forest(uint64(i), trees, depth, features)
	}
	refs := make([]Ref, models)
	for i := range refs {
		refs[i] = Ref{Model: fmt.Sprint("price/shop-", i), Version: 1, Artifact: fmt.Sprintf("%064x", uint64(i)*0x9e3779b97f4a7c15)}
	}
	for range b.N {
		found := debug.SetGCPercent(100)
		next := 0
		c, err := Open(Options{Memory: 3 << 30, Collect: debug.SetGCPercent, Fetch: func(_ context.Context, _, file string, _ int64) ([]byte, error) {
			return fetchOf(map[string][]byte{ModelFile: made[next%len(made)]})(b.Context(), "", file, 0)
		}})
		if err != nil {
			b.Fatal(err)
		}
		runtime.GC()
		before, start := liveHeap(), used(b)
		var cold, warm []time.Duration
		in, out := []tensor.Tensor{{Type: tensor.Float, Shape: []int{1, features}, Floats: make([]float32, features)}}, make([]tensor.Tensor, 1)
		ask := func(i int) (took time.Duration, hit bool) {
			begun := time.Now()
			m := c.Use(&refs[i])
			if hit = m != nil; !hit {
				next = i
				if m, err = c.Load(b.Context(), &refs[i]); err != nil {
					b.Fatal(err)
				}
			}
			if err := m.Run(in, out); err != nil {
				b.Fatal(err)
			}
			m.Answer(out, 0)
			m.Release()
			return time.Since(begun), hit
		}
		for i := range refs {
			took, _ := ask(i)
			cold = append(cold, took)
		}
		b.ReportMetric(float64((used(b)-start).Microseconds())/models, "cold-cpu-µs")
		r := rand.New(rand.NewPCG(1, 1))
		hits := 0
		for range 200_000 {
			for i := range in[0].Floats {
				in[0].Floats[i] = float32(r.NormFloat64())
			}
			took, hit := ask(r.IntN(models))
			if hit {
				warm, hits = append(warm, took), hits+1
			}
		}
		b.ReportMetric(float64(hits)/2000, "hits-%")
		runtime.GC()
		nodes := int64(models * trees * (1<<(depth+1) - 1) * 8)
		b.ReportMetric(float64(liveHeap()-before)/float64(nodes), "heap/nodes")
		b.ReportMetric(float64(c.Stats().Bytes)/float64(nodes), "counted/nodes")
		b.ReportMetric(float64(inMemory("VmRSS:"))/float64(nodes), "resident/nodes")
		b.ReportMetric(float64(inMemory("VmHWM:"))/float64(nodes), "peak/nodes")
		for name, times := range map[string][]time.Duration{"cold": cold, "warm": warm} {
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, name+"-p50-µs")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, name+"-p99-µs")
		}
		b.ReportMetric(0, "ns/op")
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		debug.SetGCPercent(found)
	}
}

// liveHeap returns the bytes of the objects that the last collection has found, and newer ones.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
