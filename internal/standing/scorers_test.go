package standing

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

func TestScorersAreAddedUp(t *testing.T) {
	swap := func(version int, at time.Duration) Swap {
		return Swap{At: when.Add(at), Model: "m", Before: version - 1, Version: version, Stream: "messages", Offset: int64(version)}
	}
	one := Scorer{Name: "s", Events: 10, Scored: 6, Passed: 1, Dropped: 1, DeadLettered: 1, Held: 1, Skipped: 2, Aborted: 3, Rate: 5, Lag: 7,
		P50: 3 * time.Millisecond, P99: 4 * time.Millisecond, Models: 2, Swaps: []Swap{swap(3, 3*time.Second), swap(1, time.Second)}, LastError: "old", LastErrorAt: when}
	two := Scorer{Name: "s", Events: 5, Scored: 5, Rate: 1, P50: time.Millisecond, P99: 9 * time.Millisecond, Models: 1,
		Swaps: []Swap{swap(2, 2*time.Second)}, LastError: "new", LastErrorAt: when.Add(time.Second)}
	all := []Process{{ID: "a", Scorers: []Scorer{one, {Name: "t", Events: 99}}}, {ID: "b", Scorers: []Scorer{two}}, {ID: "c"}}
	want := Scorer{Name: "s", Events: 15, Scored: 11, Passed: 1, Dropped: 1, DeadLettered: 1, Held: 1, Skipped: 2, Aborted: 3, Rate: 6, Lag: 7,
		P50: 3 * time.Millisecond, P99: 9 * time.Millisecond, Models: 3,
		Swaps: []Swap{swap(3, 3*time.Second), swap(2, 2*time.Second), swap(1, time.Second)}, LastError: "new", LastErrorAt: when.Add(time.Second)}
	if got, n := Of(all, "s"); n != 2 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d, %+v", n, got)
	}
	if got, n := Of(all, "u"); n != 0 || !reflect.DeepEqual(got, Scorer{Name: "u"}) {
		t.Errorf("%d, %+v", n, got)
	}
}

func TestWhatProcessesWriteIsRead(t *testing.T) {
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	s := NewScorers(client, names, "kafka-1")
	of := func(id string) Process {
		return Process{ID: id, Host: "h", Began: when, Cache: Cache{Models: 3, Hits: 7}, Scorers: []Scorer{{Name: "s", Scored: 1, Swaps: []Swap{{Model: "m", Version: 2, At: when}}}}}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	for _, id := range []string{"b", "a"} {
		writing.Go(func() { s.Publish(ctx, id, func() Process { return of(id) }) })
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(2 * time.Minute); ; <-tick.C {
		got, err := s.Read(t.Context())
		if err == nil && reflect.DeepEqual(got, []Process{of("a"), of("b")}) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	stop()
	writing.Wait()
	if got, err := s.Read(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("after they have stopped there is %+v, %v", got, err)
	}
	if _, err := NewScorers(nil, names, "").Read(t.Context()); !errors.Is(err, ErrNoRedis) {
		t.Errorf("without Redis: %v", err)
	}
}
