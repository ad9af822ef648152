package deliver

import (
	"fmt"
	"runtime"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// parkedMany returns a partition with n parked events that share some keys.
func parkedMany(t testing.TB, n, keys int, watch func()) (*partition, uint64) {
	tr := &config.Trigger{Name: "t", Delivery: config.Delivery{Ordered: true}}
	ts := &triggerSettings{plan: &plan{triggers: []string{"t"}, match: func(*broker.View, []int) []int { return nil }},
		triggers: map[string]*config.Trigger{"t": tr}, paused: func(string) bool { return false }}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p := newPartition("s", 0, defaultBounds(), 0)
	f := newRebuiltState(p, ts)
	for i := range n {
		r := record{trigger: "t", source: int64(i), first: 1_700_000_000_000, due: 1_700_000_000_000, next: int64(i)}
		v := broker.View{ID: "1", Source: "/x", Type: "t", Key: fmt.Appendf(nil, "k%d", i%keys)}
		w, err := r.wrap(&v)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.add(&broker.Incoming{View: w, Offset: int64(i)}); err != nil {
			t.Fatal(err)
		}
		if watch != nil && i%10_000 == 0 {
			watch()
		}
	}
	f.finish(0, int64(n), 1_700_000_000_000)
	if watch != nil {
		watch()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	return p, after.HeapAlloc - before.HeapAlloc
}

// Waiting events need little memory, so there may be millions.
func TestMemoryOfWhatIsParked(t *testing.T) {
	const n, few = 50_000, 10_000 // few have room in the index
	for _, c := range []struct{ n, keys, most int }{{few, 100, 34}, {few, few, 220}, {n, 100, 5}, {n, n, 5}} {
		n := c.n
		p, bytes := parkedMany(t, n, c.keys, nil)
		each := int(bytes) / n
		t.Logf("%d events of %d keys: %d bytes each", n, c.keys, each)
		if each > c.most {
			t.Errorf("%d events of %d keys take %d bytes each, want at most %d", n, c.keys, each, c.most)
		}
		if p.states["t"].parked != n {
			t.Errorf("%d are parked", p.states["t"].parked)
		}
	}
}

func BenchmarkRebuild(b *testing.B) {
	for b.Loop() {
		p, bytes := parkedMany(b, 100_000, 1000, nil)
		b.ReportMetric(float64(bytes)/100_000, "B/event")
		runtime.KeepAlive(p)
	}
}

// The load loop sleeps for up to a minute. A rebuilt partition wakes it for its first due record.
func TestARebuildWakesTheLoader(t *testing.T) {
	if p, _ := parkedMany(t, 10, 10, nil); !p.stirred {
		t.Error("the load loop is not woken")
	}
}
