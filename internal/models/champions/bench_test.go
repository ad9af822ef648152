package champions

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// BenchmarkPromotionToChanged measures the time from sending a promotion until Changed is called.
func BenchmarkPromotionToChanged(b *testing.B) {
	w, s := newWorld(b, 24), &script{}
	w.makeModel(s, "intent/a")
	told := make(chan time.Time, 1)
	o := w.options()
	o.Changed = func(string, Champion) { told <- time.Now() }
	w.open(o)
	var sent, acked []time.Duration
	version, turn := 1, int64(1)
	for b.Loop() {
		v := s.promote("intent/a", 3-version, version, turn)
		began := time.Now()
		w.publish(v)
		answered := time.Now()
		at := <-told
		sent, acked = append(sent, at.Sub(began)), append(acked, max(0, at.Sub(answered)))
		version, turn = 3-version, turn+1
	}
	for what, all := range map[string][]time.Duration{"": sent, "-acked": acked} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms"+what)
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms"+what)
	}
}

// BenchmarkOpen opens a table of 20,000 models with three versions each.
func BenchmarkOpen(b *testing.B) {
	const models = 20_000
	w, s := newWorld(b, 24), &script{}
	var left atomic.Int64
	done := make(chan error, 1)
	left.Store(4 * models)
	for n := range models {
		name := fmt.Sprint("intent/bot-", n)
		for _, v := range []*broker.View{s.register(name, 1), s.register(name, 2), s.register(name, 3), s.promote(name, 1, 0, 0)} {
			w.produce.Send(b.Context(), tidemill.StreamFacts, v, func(_ broker.Receipt, err error) {
				if left.Add(-1) == 0 || err != nil {
					select {
					case done <- err:
					default:
					}
				}
			})
		}
	}
	w.must(<-done)
	ends := w.endPlaces()
	w.waitUntil("the ledger has all facts", func() bool {
		places, _, err := w.ledger.EachModel(w.ctx(), func(*fold.Model) {})
		w.must(err)
		return len(places) == len(ends) && !slices.ContainsFunc(places, func(p broker.Position) bool { return p.Offset < ends[p.Partition] })
	})
	for b.Loop() {
		t, err := Open(w.ctx(), w.options())
		w.must(err)
		if now, _ := t.Champion("intent/bot-777"); now.Version != 1 {
			b.Fatalf("it shows %+v", now)
		}
		w.must(t.Close(b.Context()))
	}
}

func BenchmarkChampion(b *testing.B) {
	table := &Table{cells: newCells()}
	names := make([]string, 20_000)
	for n := range names {
		names[n] = fmt.Sprint("intent/bot-", n)
		table.cells.findOrCreate(names[n]).show(&fold.Model{Champion: 1})
	}
	b.RunParallel(func(p *testing.PB) {
		for n := 0; p.Next(); n++ {
			if _, ok := table.Champion(names[n*7919%len(names)]); !ok {
				b.Error("it is not there")
			}
		}
	})
}
