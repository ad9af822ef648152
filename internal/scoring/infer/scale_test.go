package infer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// BenchmarkTwentyThousand serves 20,000 models of 137 kB within 1 GiB, like a scorer of as many
// bots. It measures a use of a model that is in memory and of one that is not, and the effect
// of a sweep over all models on the popular ones. The files are on the disk, as they are from a
// scorer's second start on.
//
//	go test -run '^$' -bench TwentyThousand -benchtime 1x ./internal/scoring/infer
func BenchmarkTwentyThousand(b *testing.B) {
	const models, memory = 20_000, 1 << 30
	made := make([][]byte, 100) // made before the measurement
	for i := range made {
		made[i] = perceptron(uint64(i), 512, 64, 20)
	}
	refs := make([]Ref, models)
	for i := range refs {
		refs[i] = Ref{Model: fmt.Sprint("intent/bot-", i), Version: 1, Artifact: fmt.Sprintf("%064x", uint64(i)*0x9e3779b97f4a7c15)}
	}
	dir := b.TempDir()
	for range b.N {
		found := debug.SetGCPercent(100)
		c, err := Open(Options{Memory: memory, Dir: dir, Disk: 10 << 30, Collect: debug.SetGCPercent, Fetch: func(_ context.Context, artifact, file string, _ int64) ([]byte, error) {
			return nil, fmt.Errorf("%s of %s is not on the disk", file, artifact)
		}})
		if err != nil {
			b.Fatal(err)
		}
		for i, r := range refs {
			c.disk.write(r.Artifact, files{model: made[i%len(made)]})
		}
		w := &watched{B: b, c: c, refs: refs}
		w.run()
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		debug.SetGCPercent(found)
	}
}

// hotModels is the number of models that are used all the time.
const hotModels = 6000

// watched uses a cache and measures the time.
type watched struct {
	*testing.B
	c    *Cache
	refs []Ref

	lock                 sync.Mutex
	uses, answers, loads []time.Duration // times in memory, in memory with an answer, and with a load
	hits, asked          int
}

func (w *watched) run() {
	begun := time.Now()
	w.each(func(_ *rand.Rand, popular *rand.Zipf, u *user) {
		for range 150_000 {
			u.useRow(&w.refs[popular.Uint64()])
		}
	})
	w.Logf("warmed up in %v: %+v", time.Since(begun).Round(time.Millisecond), w.c.Stats())
	w.forget()
	begun = time.Now()
	w.each(func(_ *rand.Rand, popular *rand.Zipf, u *user) {
		for i := u.n; i < len(w.refs); i += runtime.GOMAXPROCS(0) {
			for range 3 {
				hit := u.useRow(&w.refs[popular.Uint64()])
				u.count(hit)
			}
			u.useRow(&w.refs[i])
		}
	})
	w.Logf("swept in %v: %+v", time.Since(begun).Round(time.Millisecond), w.c.Stats())
	w.report()
}

// user is one of several users, one for each processor.
type user struct {
	w                    *watched
	n, hits, asked       int
	in, out              []tensor.Tensor
	uses, answers, loads []time.Duration
}

func (w *watched) each(do func(*rand.Rand, *rand.Zipf, *user)) {
	var all sync.WaitGroup
	for n := range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 1))
			u := &user{w: w, n: n, in: []tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 512}, Floats: make([]float32, 512)}}, out: make([]tensor.Tensor, 1)}
			do(r, rand.NewZipf(r, 1.05, 10, hotModels-1), u)
			w.lock.Lock()
			defer w.lock.Unlock()
			w.uses, w.answers, w.loads = append(w.uses, u.uses...), append(w.answers, u.answers...), append(w.loads, u.loads...)
			w.hits, w.asked = w.hits+u.hits, w.asked+u.asked
		})
	}
	all.Wait()
}

func (w *watched) forget() { w.uses, w.answers, w.loads = nil, nil, nil }

func (u *user) count(hit bool) {
	if u.asked++; hit {
		u.hits++
	}
}

// useRow lets a model answer one row.
func (u *user) useRow(r *Ref) (hit bool) {
	begun := time.Now()
	m := u.w.c.Use(r)
	if hit = m != nil; hit {
		u.uses = append(u.uses, time.Since(begun))
	} else {
		var err error
		if m, err = u.w.c.Load(u.w.Context(), r); err != nil {
			u.w.Error(err)
			return false
		}
		u.loads = append(u.loads, time.Since(begun))
	}
	if err := m.Run(u.in, u.out); err != nil {
		u.w.Error(err)
	}
	if m.Answer(u.out, 0); hit {
		u.answers = append(u.answers, time.Since(begun))
	}
	m.Release()
	return hit
}

func (w *watched) report() {
	for name, times := range map[string][]time.Duration{"use": w.uses, "warm": w.answers, "cold": w.loads} {
		slices.Sort(times)
		w.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, name+"-p50-µs")
		w.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, name+"-p99-µs")
	}
	w.ReportMetric(100*float64(w.hits)/float64(w.asked), "hot-%")
	begun := time.Now()
	runtime.GC()
	w.ReportMetric(float64(time.Since(begun).Microseconds())/1e3, "collection-ms")
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	w.ReportMetric(float64(mem.NumGC), "collections")
	w.ReportMetric(float64(mem.HeapObjects), "objects")
	w.ReportMetric(float64(inMemory("VmHWM:"))/(1<<20), "peak-MiB")
	w.ReportMetric(0, "ns/op")
}

// inMemory returns the memory of the process now (VmRSS:) or its greatest (VmHWM:), if the system
// reports it.
func inMemory(which string) int64 {
	text, err := os.ReadFile(filepath.Join("/proc/self", "status"))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), which)
	n, _ := strconv.ParseInt(strings.Fields(after + " 0")[0], 10, 64)
	return n << 10
}
