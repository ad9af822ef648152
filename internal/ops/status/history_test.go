package status

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
)

func sampler(t *testing.T, server *miniredis.Miniredis) *History {
	t.Helper()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return NewHistory(client, names, "kafka-1", slog.New(slog.DiscardHandler))
}

// figures returns the figures of one thing.
func figures(name string, processes int, values ...float64) func(context.Context) map[string]Figures {
	return func(context.Context) map[string]Figures {
		return map[string]Figures{name: {Values: values, Processes: processes}}
	}
}

func (h *History) at(t *testing.T, now time.Time, look func(context.Context) map[string]Figures) {
	t.Helper()
	if err := h.Sample(t.Context(), now, look); err != nil {
		t.Fatal(err)
	}
}

func (h *History) past(t *testing.T, name string, now time.Time) Past {
	t.Helper()
	p, err := h.Read(t.Context(), name, now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newest returns the newest points; null is an unknown one.
func newest(all []float64, n int) []float64 { return all[len(all)-n:] }

const null = -1

func wantPoints(t *testing.T, what string, all []float64, want ...float64) {
	t.Helper()
	got := slices.Clone(newest(all, len(want)))
	for i, v := range got {
		if math.IsNaN(v) {
			got[i] = null
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestAHistoryHasGaps(t *testing.T) {
	h := sampler(t, miniredis.RunT(t))
	for i, parked := range []float64{1, 2, 0, 4} {
		if i == 2 {
			continue
		}
		h.at(t, when.Add(time.Duration(i)*HistoryEvery), figures("trigger:t", 1, float64(100*i), Unknown(), parked))
	}
	p := h.past(t, "trigger:t", when.Add(3*HistoryEvery+time.Second))
	if !p.Until.Equal(when.Add(3 * HistoryEvery)) {
		t.Errorf("until %v", p.Until)
	}
	wantPoints(t, "parked", p.Series["parked"], null, 1, 2, null, 4)
	wantPoints(t, "delivered", p.Series["delivered"], null, null, 10, null, 10) // the first growth is not known
	wantPoints(t, "failed", p.Series["failed"], null, null, null, null, null)
	wantPoints(t, "later", h.past(t, "trigger:t", when.Add(5*HistoryEvery)).Series["parked"], 1, 2, null, 4, null, null)
	if other := h.past(t, "trigger:u", when); len(other.Series["parked"]) != HistoryPoints {
		t.Errorf("%d points", len(other.Series["parked"]))
	}
	wantPoints(t, "two hours later", h.past(t, "trigger:t", when.Add(HistoryPoints*HistoryEvery)).Series["parked"], null, null)
	wantPoints(t, "the oldest", h.past(t, "trigger:t", when.Add((HistoryPoints-1)*HistoryEvery)).Series["parked"][:1], 1)
}

// A counter begins at zero in each process, so its growth is unknown when a process begins or ends.
func TestAGrowthIsNeverNegative(t *testing.T) {
	for name, c := range map[string]struct {
		was, is Figures
		want    float64
	}{
		"grown":            {Figures{[]float64{100, 5}, 1, nil}, Figures{[]float64{150, 7}, 1, nil}, 5},
		"nothing came":     {Figures{[]float64{100, 5}, 1, nil}, Figures{[]float64{100, 7}, 1, nil}, 0},
		"the first":        {Figures{}, Figures{[]float64{150, 7}, 1, nil}, null},
		"begun again":      {Figures{[]float64{100, 5}, 1, nil}, Figures{[]float64{50, 7}, 1, nil}, null},
		"one more process": {Figures{[]float64{100, 5}, 1, nil}, Figures{[]float64{150, 7}, 2, nil}, null},
		"unknown before":   {Figures{[]float64{Unknown(), 5}, 1, nil}, Figures{[]float64{150, 7}, 1, nil}, null},
		"unknown now":      {Figures{[]float64{100, 5}, 1, nil}, Figures{[]float64{Unknown(), 7}, 1, nil}, null},
	} {
		got := growth("stream:s", c.was, c.is, HistoryEvery)
		wantPoints(t, name, got, c.want, 7)
	}
}

// One process samples at a time. If it dies, another one goes on.
func TestOneProcessSamples(t *testing.T) {
	server := miniredis.RunT(t)
	one, two := sampler(t, server), sampler(t, server)
	at := func(step int) time.Time { return when.Add(time.Duration(step) * HistoryEvery) }
	one.at(t, at(0), figures("pool:p", 0, 1, 1, 1, 1))
	two.at(t, at(0), figures("pool:p", 0, 2, 2, 2, 2))
	one.at(t, at(1), figures("pool:p", 0, 1, 1, 1, 1))
	two.at(t, at(1), figures("pool:p", 0, 2, 2, 2, 2))
	server.FastForward(2 * HistoryEvery) // one has died, and its lease has not expired yet
	two.at(t, at(3), figures("pool:p", 0, 2, 2, 2, 2))
	server.FastForward(HistoryEvery)
	two.at(t, at(4), figures("pool:p", 0, 2, 2, 2, 12))
	two.at(t, at(5), figures("pool:p", 0, 2, 2, 2, 32))
	one.at(t, at(5), figures("pool:p", 0, 1, 1, 1, 1)) // it was only slow
	p := one.past(t, "pool:p", at(5))
	wantPoints(t, "running", p.Series["running"], null, 1, 1, null, null, 2, 2)
	wantPoints(t, "idle", p.Series["idleGPUs"], null, null, 0, null, null, null, 2)
}

// A flush loses the history, and nothing else.
func TestAHistoryAfterAFlush(t *testing.T) {
	server := miniredis.RunT(t)
	h := sampler(t, server)
	h.at(t, when, figures("stream:s", 0, 10, 1))
	server.FlushAll()
	wantPoints(t, "lag", h.past(t, "stream:s", when).Series["lag"], null)
	h.at(t, when.Add(HistoryEvery), figures("stream:s", 0, 20, 2))
	p := h.past(t, "stream:s", when.Add(HistoryEvery))
	wantPoints(t, "lag", p.Series["lag"], null, null, 2)
	wantPoints(t, "rate", p.Series["rate"], null, null, 1) // the process knows the ends of before the flush
	server.SetError("down")
	if _, err := h.Read(t.Context(), "stream:s", when); err == nil || !strings.Contains(err.Error(), "read the history of stream:s") {
		t.Errorf("without Redis: %v", err)
	}
	if err := h.Sample(t.Context(), when, figures("stream:s", 0, 1, 1)); err == nil {
		t.Error("a sample without Redis succeeds")
	}
}

// The size is bounded, and a thing that is gone loses its history.
func TestAHistoryIsBounded(t *testing.T) {
	server := miniredis.RunT(t)
	h := sampler(t, server)
	swaps := make([]Swap, 3*swapsKept)
	for i := range swaps {
		swaps[i] = Swap{At: when.Add(-time.Duration(i) * time.Millisecond), Model: "m", Before: 3*swapsKept - i - 1, Version: 3*swapsKept - i}
	}
	for i := range 3 * HistoryPoints {
		now := when.Add(time.Duration(i) * HistoryEvery)
		look := func(context.Context) map[string]Figures {
			return map[string]Figures{"scorer:s": {Values: []float64{1, 2, 3, 4, 5}, Processes: 1, Swaps: swaps[:1+i%2*(len(swaps)-1)]}}
		}
		if i > 1 {
			look = figures("scorer:s", 1, 1, 2, 3, 4, 5)
		}
		h.at(t, now, look)
		if i == 1 {
			if p := h.past(t, "scorer:s", now); len(p.Swaps) != swapsKept || p.Swaps[swapsKept-1].Version != 3*swapsKept {
				t.Errorf("%d swaps, the last %+v", len(p.Swaps), p.Swaps[len(p.Swaps)-1])
			}
		}
	}
	if text, err := server.Get(h.prefix + "scorer:s"); err != nil || len(text) != HistoryPoints*24 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if p := h.past(t, "scorer:s", when.Add(3*HistoryPoints*HistoryEvery)); len(p.Swaps) != 0 {
		t.Errorf("swaps of hours ago: %v", p.Swaps)
	}
	server.FastForward(historyLives)
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
}

// A version is one swap, at the time of its first partition.
func TestSwapsInAHistory(t *testing.T) {
	h := sampler(t, miniredis.RunT(t))
	of := func(version int, partition int32, after time.Duration) Swap {
		return Swap{At: when.Add(after), Model: "intent/bot 42", Before: version - 1, Version: version, Stream: "s", Partition: partition, Offset: 7}
	}
	for _, all := range [][]Swap{{of(1, 0, 0)}, {of(2, 1, 9*time.Second), of(2, 0, 7*time.Second), of(1, 0, 0)}} {
		h.at(t, when, func(context.Context) map[string]Figures {
			return map[string]Figures{"scorer:s": {Values: []float64{1, 2, 3, 4, 5}, Swaps: all}}
		})
	}
	want := []Swap{{At: when, Model: "intent/bot 42", Version: 1}, {At: when.Add(7 * time.Second), Model: "intent/bot 42", Before: 1, Version: 2}}
	if got := h.past(t, "scorer:s", when.Add(time.Minute)).Swaps; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// Without Redis nothing is known, and nothing is sampled.
func TestNoHistoryWithoutRedis(t *testing.T) {
	h := NewHistory(nil, tidemill.Names{}, "", nil)
	h.Record(t.Context(), nil)
	wantPoints(t, "lag", h.past(t, "stream:s", when).Series["lag"], null, null)
}

// A process that ends gives the lease back, so that another one goes on at once. It gives back no other's lease.
func TestTheLeaseIsGivenBack(t *testing.T) {
	server := miniredis.RunT(t)
	one, two := sampler(t, server), sampler(t, server)
	over, stop := context.WithCancel(t.Context())
	stop()
	one.at(t, when, figures("stream:s", 0, 1, 1))
	two.Record(over, nil)
	two.at(t, when.Add(HistoryEvery), figures("stream:s", 0, 9, 9))
	one.Record(over, nil)
	two.at(t, when.Add(2*HistoryEvery), figures("stream:s", 0, 2, 2))
	wantPoints(t, "lag", two.past(t, "stream:s", when.Add(2*HistoryEvery)).Series["lag"], null, 1, null, 2)
}

func TestSamplesAreTakenAtEachStep(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{0: HistoryEvery, 3 * time.Second: 7 * time.Second, HistoryEvery - 1: 1} {
		if got := untilNext(when.Add(after)); got != want {
			t.Errorf("%v after a step: %v, want %v", after, got, want)
		}
	}
}

func TestFreshnessIsKept(t *testing.T) {
	server := miniredis.RunT(t)
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	f := NewFreshness(client, names, "kafka-1")
	swap := func(version int, after time.Duration) Swap {
		return Swap{Model: "m/a", Version: version, At: when.Add(after)}
	}
	for i, c := range []struct {
		s    Swap
		want bool
	}{{swap(2, 0), true}, {swap(2, time.Second), false}, {swap(10, time.Minute), true}, {swap(9, time.Hour), false}, {swap(10, time.Hour), false}} {
		if got, err := f.Claim(t.Context(), c.s); err != nil || got != c.want {
			t.Errorf("swap %d: %v, %v", i, got, err)
		}
	}
	for version, want := range map[int]time.Time{10: when.Add(time.Minute), 2: {}, 1: {}} {
		if at, err := f.Swapped(t.Context(), "m/a", version); err != nil || !at.Equal(want) {
			t.Errorf("version %d: %v, %v", version, at, err)
		}
	}
	for i := range freshKept + 20 {
		if err := f.Add(t.Context(), "r", api.FreshStages{Total: new(float64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.Read(t.Context(), "r")
	if err != nil || len(all) != freshKept || *all[0].Total != freshKept+19 || all[0].Waiting != nil {
		t.Errorf("%d values, %v", len(all), err)
	}
	server.FastForward(freshLives)
	if keys := server.Keys(); len(keys) != 0 {
		t.Errorf("left: %v", keys)
	}
	var none *Freshness
	if all, err := none.Read(t.Context(), "r"); err != nil || all != nil {
		t.Errorf("without Redis: %v, %v", all, err)
	}
	if at, err := none.Swapped(t.Context(), "m/a", 1); err != nil || !at.IsZero() {
		t.Errorf("without Redis: %v, %v", at, err)
	}
}
