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
		got := sum(parts)
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
