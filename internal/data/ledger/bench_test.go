package ledger_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// BenchmarkAppend compares an append with a publish of the same fact, one at a time.
func BenchmarkAppend(b *testing.B) {
	w, s := newWorld(b, 24), &script{}
	l := w.open()
	b.Run("publish", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			v, _ := s.runRequest("intent", fmt.Sprint("p", i), "c", nil)
			_, err := w.produce.Publish(b.Context(), tidemill.StreamFacts, v)
			must(b, err)
		}
	})
	b.Run("append", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			v, _ := s.runRequest("intent", fmt.Sprint("a", i), "c", nil)
			_, _, err := l.Append(b.Context(), v)
			must(b, err)
		}
	})
}

// BenchmarkRunsAtOnce measures whole runs: many workers request, start and finish them.
func BenchmarkRunsAtOnce(b *testing.B) {
	for _, workers := range []int{8, 64, 256} {
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) { runsAtOnce(b, newWorld(b, 24), workers) })
	}
}

func runsAtOnce(b *testing.B, w *world, workers int) {
	l, s := w.open(), &script{}
	var n atomic.Int64
	var working sync.WaitGroup
	b.ResetTimer()
	for range workers {
		working.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				w.whole(l, s, fmt.Sprint("bot-", i))
			}
		})
	}
	working.Wait()
	b.ReportMetric(3*float64(b.N)/b.Elapsed().Seconds(), "facts/s")
}

func (w *world) whole(l *ledger.Ledger, s *script, key string) {
	v, _ := s.runRequest("intent", key, "c", nil)
	_, m, err := l.Append(w.t.Context(), v)
	if err == nil {
		_, m, err = l.Append(w.t.Context(), s.start(m.Waiting, "gpu"))
	}
	if err == nil {
		_, _, err = l.Append(w.t.Context(), s.finish(m.Live, tidemill.OutcomeSucceeded))
	}
	if err != nil {
		w.t.Error(err)
	}
}

// BenchmarkClaim shows that a decision costs the same for few and for many waiting runs.
func BenchmarkClaim(b *testing.B) {
	for _, waiting := range []int{100, 100_000} {
		b.Run(fmt.Sprint("waiting=", waiting), func(b *testing.B) { claims(b, newWorld(b, 24), waiting) })
	}
}

func claims(b *testing.B, w *world, waiting int) {
	s := &script{}
	w.publish(waiting, func(i int) *broker.View {
		v, _ := s.runRequest("intent", fmt.Sprint("bot-", i), "c", nil)
		return v
	})
	l := w.openWith(w.options())
	refilled(b, l)
	for b.Loop() {
		slot, ok, err := l.Claim(b.Context(), ask(8, ledger.Admission{Recipe: "intent"}, ledger.Admission{Recipe: "fraud"}), time.Now())
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		must(b, l.Return(b.Context(), slot))
	}
}

// publish sends facts as fast as possible, and returns their offsets.
func (w *world) publish(n int, fact func(i int) *broker.View) []int64 {
	w.t.Helper()
	offsets := make([]int64, n)
	var failed atomic.Pointer[error]
	for i := range n {
		w.produce.Send(w.t.Context(), tidemill.StreamFacts, fact(i), func(r broker.Receipt, err error) {
			if offsets[i] = r.Offset; err != nil {
				failed.Store(&err)
			}
		})
	}
	must(w.t, w.produce.Flush(w.t.Context()))
	if err := failed.Load(); err != nil {
		w.t.Fatal(*err)
	}
	return offsets
}

// BenchmarkRefill measures the refill of a flushed Redis. REFILL_FACTS=1000000 gives the size
// that its limit is meant for.
func BenchmarkRefill(b *testing.B) { refill(b, newWorld(b, 24)) }

func refill(b *testing.B, w *world) {
	facts := 30_000
	if text := os.Getenv("REFILL_FACTS"); text != "" {
		var err error
		facts, err = strconv.Atoi(text)
		must(b, err)
	}
	w.history(&script{}, facts)
	heap := memory()
	l := w.openWith(w.options())
	refilled(b, l)
	heap = memory() - heap
	spent := cpu(b)
	for b.Loop() {
		must(b, w.redis.FlushAll(b.Context()).Err())
		for {
			if _, err := l.Making(b.Context(), "intent", "bot-0"); err != nil {
				break // the ledger has noticed the flush
			}
		}
		refilled(b, l)
	}
	b.ReportMetric(float64((cpu(b)-spent).Nanoseconds())/1000/float64(b.N*facts), "cpu-µs/fact") // CPU time of the process, with Kafka's and Redis's
	b.ReportMetric(float64(facts)/(b.Elapsed().Seconds()/float64(b.N)), "facts/s")
	b.ReportMetric(float64(heap)/(1<<20), "MB") // memory of the ledger and of Redis
	w.floor(b, facts)
}

func refilled(b *testing.B, l *ledger.Ledger) {
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	must(b, l.CaughtUp(ctx))
}

// history writes whole runs. The number of keys is such that each has about 16 runs.
func (w *world) history(s *script, facts int) {
	keys := max(1, facts/50)
	for round := 0; round*3*keys < facts; round++ {
		runs := make([]string, keys)
		seen := w.publish(keys, func(i int) (v *broker.View) {
			v, runs[i] = s.runRequest("intent", fmt.Sprint("bot-", i), fmt.Sprint("cause-", round), nil)
			return v
		})
		w.publish(2*keys, func(n int) *broker.View {
			i := n / 2
			if n%2 == 0 {
				return s.view(tidemill.TypeRunStarted, "intent", fmt.Sprint("bot-", i), runs[i],
					tidemill.RunStarted{Attempt: 1, Seen: seen[i], Plan: plan("gpu", ""), Where: tidemill.Where{Node: "node-1", Card: "H200"}})
			}
			return s.view(tidemill.TypeRunFinished, "intent", fmt.Sprint("bot-", i), runs[i],
				tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: result()})
		})
	}
}

func memory() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
