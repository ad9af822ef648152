package status

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

var when = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

func board(t *testing.T, server *miniredis.Miniredis) *Board {
	t.Helper()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return NewBoard(client, names, "kafka-1")
}

func TestPartsAreAddedUp(t *testing.T) {
	one := Trigger{Name: "t", Delivered: 5, Failed: 2, DeadLettered: 1, Replies: 3, InFlight: 1, Parked: 4, OldestParked: when, LastError: "old", LastErrorAt: when}
	two := Trigger{Name: "t", Delivered: 7, Parked: 1, OldestParked: when.Add(-time.Hour), Starting: true, LastError: "new", LastErrorAt: when.Add(time.Minute)}
	want := Trigger{Name: "t", Delivered: 12, Failed: 2, DeadLettered: 1, Replies: 3, InFlight: 1, Parked: 5, OldestParked: when.Add(-time.Hour),
		Starting: true, LastError: "new", LastErrorAt: when.Add(time.Minute)}
	quiet := Trigger{Name: "u"}
	for _, parts := range [][][]Trigger{{{one, quiet}, {two}}, {{two}, {}, {quiet, one}}} {
		got := sumParts(parts)
		if got.Dispatchers != len(parts) || !reflect.DeepEqual(got.Triggers["t"], want) || got.Triggers["u"] != quiet {
			t.Errorf("%+v", got)
		}
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	server := miniredis.RunT(t)
	b := board(t, server)
	if got, err := b.Read(t.Context()); err != nil || got.Dispatchers != 0 {
		t.Errorf("before anybody wrote there is %+v, %v", got, err)
	}
	for _, d := range []string{"a", "b"} {
		if err := b.Write(t.Context(), d, []Trigger{{Name: "t", Delivered: 2, OldestParked: when}}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := b.Read(t.Context()); err != nil || got.Dispatchers != 2 || got.Triggers["t"].Delivered != 4 || !got.Triggers["t"].OldestParked.Equal(when) {
		t.Errorf("%+v, %v", got, err)
	}
	server.FastForward(lives / 2)
	if err := b.Write(t.Context(), "b", []Trigger{{Name: "t", Delivered: 3}}); err != nil {
		t.Fatal(err)
	}
	server.FastForward(lives * 3 / 4)
	if got, err := b.Read(t.Context()); err != nil || got.Dispatchers != 1 || got.Triggers["t"].Delivered != 3 {
		t.Errorf("after one has fallen silent: %+v, %v", got, err)
	}
	if left, err := server.Members(b.index); err != nil || len(left) != 1 {
		t.Errorf("listed are %v, %v", left, err)
	}
}

func TestADispatcherThatStopsTakesItsPartAway(t *testing.T) {
	b := board(t, miniredis.RunT(t))
	ctx, stop := context.WithCancel(t.Context())
	asked := make(chan struct{}, 1)
	var writing sync.WaitGroup
	writing.Go(func() {
		b.Publish(ctx, "a", func() []Trigger {
			select {
			case asked <- struct{}{}:
			default:
			}
			return []Trigger{{Name: "t", Delivered: 1}}
		})
	})
	<-asked
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(2 * time.Minute); ; <-tick.C {
		if got, err := b.Read(t.Context()); err == nil && got.Dispatchers == 1 {
			break
		} else if time.Now().After(late) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	stop()
	writing.Wait()
	if got, err := b.Read(t.Context()); err != nil || got.Dispatchers != 0 {
		t.Errorf("after it has stopped there is %+v, %v", got, err)
	}
}

func TestWithoutRedisNothingIsKnown(t *testing.T) {
	var none *Board
	none.Publish(t.Context(), "a", nil)
	if _, err := none.Read(t.Context()); !errors.Is(err, ErrNoRedis) {
		t.Errorf("%v", err)
	}
	server := miniredis.RunT(t)
	b := board(t, server)
	server.Close()
	if _, err := b.Read(t.Context()); err == nil {
		t.Error("of a Redis that is away something is known")
	}
}

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
