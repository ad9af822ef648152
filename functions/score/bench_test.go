package score

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
)

const (
	benchModels = 1000
	benchInputs = 512
)

// benchEvent is an event of 1 KiB.
func benchEvent(r *rand.Rand, key string, n int) broker.View {
	data := []byte(`{"x":[`)
	for i := range benchInputs {
		if i > 0 {
			data = append(data, ',')
		}
		data = strconv.AppendInt(data, int64(r.IntN(10)), 10)
	}
	return broker.View{ID: fmt.Sprint("event-", n), Source: "/crm", Type: "message", Subject: key, DataContentType: "application/json",
		Time: "2026-11-22T10:00:00Z", Data: append(data, "]}"...)}
}

// fill publishes n events, with keys by Zipf.
func (w *world) fill(n, models int) {
	w.Helper()
	r := rand.New(rand.NewPCG(7, 7))
	zipf := rand.NewZipf(r, 1.1, 4, uint64(models-1))
	var done sync.WaitGroup
	for i := range n {
		v := benchEvent(r, fmt.Sprint("bot-", zipf.Uint64()), i)
		done.Add(1)
		w.p.Send(w.Context(), streamIn, &v, func(_ broker.Receipt, err error) {
			if err != nil {
				w.Error(err)
			}
			done.Done()
		})
	}
	done.Wait()
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// meter reports the cost of an event.
func meter(b *testing.B, n int, work func()) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began, spent := time.Now(), cpu()
	work()
	took, used := time.Since(began), cpu()-spent
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(n)/took.Seconds(), "events/s")
	b.ReportMetric(float64(used.Nanoseconds())/float64(n), "cpu-ns/event")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/event")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBots measures the whole scorer: 1,000 models 512→64→20, events of 1 KiB. Two
// baselines show its limit: copy only consumes and produces as much, and infer only computes
// the answers.
func BenchmarkBots(b *testing.B) {
	const n = 300_000
	w := newSeparateWorld(b)
	w.fill(n, benchModels)
	for i := range benchModels {
		w.model(artifactOf(fmt.Sprint("m/bot-", i), 1), network(uint64(i), benchInputs, 64, 20))
	}
	for i := range benchModels {
		w.promoted(fmt.Sprint("m/bot-", i), 1)
	}
	b.Run("copy", func(b *testing.B) { meter(b, n, func() { w.copy(n) }) })
	b.Run("infer", func(b *testing.B) { w.inferAlone(b, n) })
	for _, atLeastOnce := range []bool{true, false} {
		b.Run(fmt.Sprint("atLeastOnce=", atLeastOnce), func(b *testing.B) {
			conf := scorer()
			conf.Name, conf.AtLeastOnce = fmt.Sprint("s", atLeastOnce), atLeastOnce
			_, err := w.b.EnsureStreams(b.Context(), []broker.StreamSpec{{Name: tidemill.ScorerParked(conf.Name), Partitions: w.partitions}}, broker.EnsureOptions{})
			w.must(err)
			p := &process{w: w}
			p.open(conf)
			p.load(benchModels)
			meter(b, n, func() {
				p.score(conf)
				w.poll("all are scored", func() bool { return p.s.Standing().Events >= n })
			})
			if at := p.s.Standing(); at.Scored != n || at.Aborted != 0 {
				b.Errorf("the standing is %+v", at)
			}
			p.close()
		})
	}
}

// load loads all models.
func (p *process) load(n int) {
	p.w.Helper()
	for i := range n {
		m, err := await(p.w.Context(), p.m, fmt.Sprint("m/bot-", i), true)
		p.w.must(err)
		m.Release()
	}
}

// copy consumes and produces without scoring: outputs as large as those of the
// scorer, on all cores.
func (w *world) copy(n int) {
	w.Helper()
	c, err := w.b.Consumer(w.Context(), broker.ConsumerOptions{Group: "copy", Streams: []string{streamIn}})
	w.must(err)
	p, err := w.b.Producer(broker.ProducerOptions{AsRead: true})
	w.must(err)
	data := make([]byte, 400)
	var acked atomic.Int64
	for seen := 0; seen < n; {
		d, err := c.Poll(w.Context())
		w.must(err)
		left := new(atomic.Int64)
		left.Store(int64(len(d.Events)))
		told := func(_ broker.Receipt, err error) {
			if err != nil {
				w.Error(err)
			}
			acked.Add(1)
			if left.Add(-1) == 0 {
				d.Done()
			}
		}
		for i := range d.Events {
			e := &d.Events[i]
			p.SendTo(w.Context(), streamOut, d.Partition, &broker.View{ID: e.ID, Source: "/tidemill/prod/scorer/s", Type: "tidemill.scored", Subject: e.Subject, Time: e.View.Time,
				DataContentType: "application/json", Key: e.Key, Data: data, Extensions: []broker.Attribute{{Name: "model", Value: "m/bot-1"}, {Name: "modelversion", Value: "1"},
					{Name: "causationid", Value: e.ID}, {Name: "causationsource", Value: e.Source}}}, told)
		}
		seen += len(d.Events)
	}
	w.must(p.Close(context.Background()))
	w.must(c.Close(context.Background()))
	if acked.Load() != int64(n) {
		w.Errorf("%d events were copied", acked.Load())
	}
}

// inferAlone reads and answers events in memory, in groups by model as in the scorer, on all
// cores.
func (w *world) inferAlone(b *testing.B, n int) {
	b.Helper()
	cache, err := infer.Open(infer.Options{Fetch: func(_ context.Context, _, file string, _ int64) ([]byte, error) {
		if file != infer.ModelFile {
			return nil, fs.ErrNotExist
		}
		return network(1, benchInputs, 64, 20), nil
	}})
	w.must(err)
	defer cache.Close()
	models := make([]*infer.Model, benchModels)
	for i := range models {
		models[i], err = cache.Load(b.Context(), &infer.Ref{Model: fmt.Sprint("m/bot-", i), Version: 1, Artifact: strconv.Itoa(i), Engine: infer.EngineAuto})
		w.must(err)
		defer models[i].Release()
	}
	r := rand.New(rand.NewPCG(7, 7))
	zipf := rand.NewZipf(r, 1.1, 4, benchModels-1)
	const batch = 4096
	events := make([]broker.View, batch)
	groups := make([][]int, benchModels)
	for i := range events {
		events[i] = benchEvent(r, "bot", i)
		m := zipf.Uint64()
		groups[m] = append(groups[m], i)
	}
	conf := scorer()
	plan, err := features.New(fieldsOf(&conf), models[0].Inputs())
	w.must(err)
	meter(b, n, func() {
		for range n / batch {
			var next atomic.Int32
			var all sync.WaitGroup
			for range runtime.GOMAXPROCS(0) {
				all.Go(func() {
					in, out := make([]tensor.Tensor, 1), make([]tensor.Tensor, 1)
					var arena []byte
					for {
						m := int(next.Add(1)) - 1
						if m >= len(groups) {
							return
						}
						g := groups[m]
						if len(g) == 0 {
							continue
						}
						plan.Begin(in, len(g))
						for row, i := range g {
							if err := plan.Read(&events[i], in, row); err != nil {
								b.Error(err)
							}
						}
						plan.End(in, len(g))
						if err := models[m].Run(in, out); err != nil {
							b.Error(err)
						}
						arena = arena[:0]
						for row := range g {
							a := models[m].Answer(out, row)
							arena = appendScored(arena, &a, 0)
						}
					}
				})
			}
			all.Wait()
		}
	})
}

// BenchmarkLatency measures the time from an event's arrival on the log to the commit of its
// output, at 5,000 events per second, exactly once.
func BenchmarkLatency(b *testing.B) {
	const models, each, rounds = 200, 25, 1000
	w := newSeparateWorld(b)
	for i := range models {
		w.model(artifactOf(fmt.Sprint("m/bot-", i), 1), network(uint64(i), benchInputs, 64, 20))
		w.promoted(fmt.Sprint("m/bot-", i), 1)
	}
	p := &process{w: w}
	p.open(scorer())
	p.load(models)
	p.score(scorer())
	r := rand.New(rand.NewPCG(7, 7))
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range rounds {
		<-tick.C
		for j := range each {
			v := benchEvent(r, fmt.Sprint("bot-", r.IntN(models)), i*each+j)
			w.p.Send(b.Context(), streamIn, &v, func(_ broker.Receipt, err error) {
				if err != nil {
					b.Error(err)
				}
			})
		}
	}
	w.poll("all are scored", func() bool { return p.s.Standing().Scored == each*rounds })
	at := p.s.Standing()
	b.ReportMetric(float64(at.P50.Milliseconds()), "p50-ms")
	b.ReportMetric(float64(at.P99.Milliseconds()), "p99-ms")
	b.ReportMetric(float64(p.s.counts.batches.Load()), "batches")
	b.ReportMetric(0, "ns/op")
}
