package retry

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoffGrowth(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		b    Backoff
		want []time.Duration
	}{
		"doubles up to the cap":     {Backoff{First: 20 * ms, Cap: 100 * ms}, []time.Duration{20 * ms, 40 * ms, 80 * ms, 100 * ms, 100 * ms}},
		"jumps with a large factor": {Backoff{First: 100 * ms, Cap: time.Second, Factor: 10}, []time.Duration{100 * ms, time.Second, time.Second}},
		"first above the cap":       {Backoff{First: time.Second, Cap: 100 * ms}, []time.Duration{100 * ms, 100 * ms}},
		"does not overflow":         {Backoff{First: math.MaxInt64 / 3, Cap: math.MaxInt64}, []time.Duration{math.MaxInt64 / 3, math.MaxInt64 / 3 * 2, math.MaxInt64}},
	} {
		t.Run(name, func(t *testing.T) {
			for round := range 2 {
				var got []time.Duration
				for n := range c.want {
					got = append(got, c.b.Next())
					if after := c.b.After(n + 1); after != got[n] {
						t.Errorf("round %d: After(%d) is %v, Next was %v", round, n+1, after, got[n])
					}
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("round %d: got %v, want %v", round, got, c.want)
				}
				c.b.Reset()
			}
		})
	}
}

func TestJitterStaysInItsShare(t *testing.T) {
	for _, c := range []struct {
		d, least time.Duration
		share    float64
	}{
		{time.Second, time.Second, 0},
		{time.Second, 750 * time.Millisecond, 0.25},
		{time.Second, 500 * time.Millisecond, 0.5},
		{time.Second, 0, 1},
		{1, 1, 0.5},
		{0, 0, 0.5},
	} {
		for range 100 {
			if got := Jitter(c.d, c.share); got < c.least || got > c.d {
				t.Fatalf("Jitter(%v, %v) is %v, want %v to %v", c.d, c.share, got, c.least, c.d)
			}
		}
	}
}

func TestWait(t *testing.T) {
	over := errors.New("over")
	closed := make(chan struct{})
	close(closed)
	for name, c := range map[string]struct {
		wake   chan struct{}
		d, end time.Duration // end of the context; 0 for never
		want   error
		took   time.Duration
	}{
		"until the time is up":         {d: time.Hour, took: time.Hour},
		"until the context ends":       {d: time.Hour, end: time.Minute, want: over, took: time.Minute},
		"until it is woken":            {wake: closed, d: time.Hour},
		"not at all":                   {d: 0, end: time.Minute},
		"not at all for a past time":   {d: -time.Hour},
		"not when the context is over": {d: 0, end: -1, want: over},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				switch {
				case c.end > 0:
					defer time.AfterFunc(c.end, func() { cancel(over) }).Stop()
				case c.end < 0:
					cancel(over)
				}
				wake := c.wake
				if wake != nil { // a channel of the bubble
					wake = make(chan struct{})
					close(wake)
				}
				began := time.Now()
				if err := Wait(ctx, wake, c.d); err != c.want {
					t.Errorf("got error %v, want %v", err, c.want)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
			})
		})
	}
}
