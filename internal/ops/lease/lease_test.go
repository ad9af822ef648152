package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func open(t *testing.T) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func never(error) bool { return false }

// Two processes want one task. The second begins when the first ends, and never before.
func TestOneHoldsATaskAndAnotherTakesItOver(t *testing.T) {
	t.Parallel()
	o := Options{Part: "observer", Task: "outcomes.frauds", Beaten: never, Redis: open(t), Key: "lease", For: 5 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	began := make(chan string, 2)
	hold := func(ctx context.Context, name string, all *sync.WaitGroup) {
		all.Go(func() {
			Hold(ctx, o, func(ctx context.Context) error {
				began <- name
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
	}
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	var one, two sync.WaitGroup
	hold(first, "first", &one)
	if got := <-began; got != "first" {
		t.Fatal(got)
	}
	hold(second, "second", &two)
	if holder := o.Redis.Get(t.Context(), "lease").Val(); holder == "" {
		t.Fatal("nothing holds the lease")
	}
	select {
	case got := <-began:
		t.Fatalf("%s began while the first process had the task", got)
	default:
	}
	stopFirst()
	one.Wait()
	if got := <-began; got != "second" {
		t.Fatal(got)
	}
	stopSecond()
	two.Wait()
	if n := o.Redis.Exists(t.Context(), "lease").Val(); n != 0 {
		t.Error("the lease was not given up")
	}
}

// A task that fails runs again, later after each failure.
func TestAFailedTaskRunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var times []time.Time
		Hold(ctx, Options{Part: "observer", Task: "t", For: time.Minute, Beaten: never, Logger: slog.New(slog.DiscardHandler)}, func(context.Context) error {
			if times = append(times, time.Now()); len(times) == 4 {
				stop()
			}
			return errors.New("Kafka is away")
		})
		for i := 2; i < len(times); i++ {
			if first, next := times[i-1].Sub(times[i-2]), times[i].Sub(times[i-1]); first <= 0 || next <= first/2 {
				t.Errorf("waits %v and then %v", first, next)
			}
		}
	})
}
