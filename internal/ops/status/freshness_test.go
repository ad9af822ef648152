package status

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
)

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
