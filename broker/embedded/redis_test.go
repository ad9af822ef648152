package embedded

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestKeysExpire(t *testing.T) {
	s := start(t, Options{})
	r := redis.NewClient(&redis.Options{Addr: s.Redis()})
	defer r.Close()
	must(t, r.Set(t.Context(), "long", 1, time.Hour).Err())
	began := time.Now()
	must(t, r.Set(t.Context(), "short", 1, 300*time.Millisecond).Err())
	waitEffect(t, "the key has expired", func() bool { return r.Exists(t.Context(), "short").Val() == 0 })
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("300 ms took %v", took)
	}
	if left := r.TTL(t.Context(), "long").Val(); left < 59*time.Minute || left > time.Hour {
		t.Errorf("an hour's key has %v left", left)
	}
}

func TestNextTick(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{
		0:                     tick,
		time.Millisecond:      tick,
		20 * time.Millisecond: time.Second,
	} {
		if got := nextTick(cost); got != want {
			t.Errorf("after %v: %v, want %v", cost, got, want)
		}
	}
}

// A late tick does not expire a recently set key.
func TestALateTick(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{90 * time.Millisecond: 90 * time.Millisecond, tick: tick, time.Minute: tick} {
		if got := ageTime(since, tick); got != want {
			t.Errorf("after %v keys age by %v, want %v", since, got, want)
		}
	}
}
