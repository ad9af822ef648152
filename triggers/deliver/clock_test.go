package deliver

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/quick"
	"testing/synctest"
	"time"

	"tidemill.dev/config"
)

func TestAClockThatIsSet(t *testing.T) {
	var w steadyClock
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	start := w.read(at, 0, 0)
	for _, step := range []struct {
		what          string
		passed, moved time.Duration
		want          time.Duration // time since the start
	}{
		{"a second passes", time.Second, time.Second, time.Second},
		{"it is set back by three hours", time.Second, time.Second - 3*time.Hour, 2 * time.Second},
		{"an hour passes", time.Hour, time.Hour, time.Hour + 2*time.Second},
		{"it is set right", time.Second, time.Second + 3*time.Hour, time.Hour + 3*time.Second},
		{"the machine sleeps", 0, 8 * time.Hour, 9*time.Hour + 3*time.Second},
		{"it is set back by an hour", 0, -time.Hour, 9*time.Hour + 3*time.Second},
		{"and sleeps for two", 0, 2 * time.Hour, 10*time.Hour + 3*time.Second},
	} {
		at = at.Add(step.moved)
		if got := time.Duration(w.read(at, step.passed, step.moved)-start) * time.Millisecond; got != step.want {
			t.Errorf("%s: %s since the start, want %s", step.what, got, step.want)
		}
	}
	if a, b := w.now(), w.now(); b < a {
		t.Errorf("from %d to %d", a, b)
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	backoff := func(kind config.BackoffKind, first, cap time.Duration) config.Backoff {
		return config.Backoff{Kind: kind, First: first, Cap: cap}
	}
	for _, c := range []struct {
		name    string
		b       config.Backoff
		attempt int
		after   time.Duration
		want    time.Duration
	}{
		{"constant", backoff(config.Constant, 2*s, time.Minute), 1, 0, 2 * s},
		{"constant stays", backoff(config.Constant, 2*s, time.Minute), 10_000, 0, 2 * s},
		{"linear", backoff(config.Linear, 2*s, time.Minute), 3, 0, 6 * s},
		{"linear, capped", backoff(config.Linear, 2*s, time.Minute), 31, 0, time.Minute},
		{"linear, far out", backoff(config.Linear, math.MaxInt64/2, 0), 10_000, 0, math.MaxInt64},
		{"exponential", backoff(config.Exponential, s, 5*time.Minute), 1, 0, s},
		{"exponential doubles", backoff(config.Exponential, s, 5*time.Minute), 5, 0, 16 * s},
		{"exponential, capped", backoff(config.Exponential, s, 5*time.Minute), 10, 0, 5 * time.Minute},
		{"exponential, far out", backoff(config.Exponential, 1, 5*time.Minute), 10_000, 0, 5 * time.Minute},
		{"exponential without a cap", backoff(config.Exponential, s, 0), 10_000, 0, math.MaxInt64},
		{"exponential to the last bit", backoff(config.Exponential, 1, 0), 63, 0, 1 << 62},
		{"exponential beyond it", backoff(config.Exponential, 1, 0), 64, 0, math.MaxInt64},
		{"a cap below the first", backoff(config.Constant, s, 10*ms), 1, 0, 10 * ms},
		{"an attempt before the first", backoff(config.Exponential, s, 0), 0, 0, s},
		{"no wait", backoff(config.Exponential, 0, s), 7, 0, 0},
		{"asked for more", backoff(config.Constant, s, 10*s), 1, time.Minute, time.Minute},
		{"asked for less", backoff(config.Constant, s, 10*s), 1, ms, s},
	} {
		if got := delay(c.b, c.attempt, 0.5, c.after); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestDelayWithJitterIsFromAHalfToTheWhole(t *testing.T) {
	t.Parallel()
	b := config.Backoff{Kind: config.Constant, First: 10 * time.Second, Cap: time.Minute, Jitter: true}
	for random, want := range map[float64]time.Duration{0: 5 * time.Second, 0.5: 7500 * time.Millisecond, 1 - 1e-16: 10 * time.Second} {
		if got := delay(b, 1, random, 0); got != want {
			t.Errorf("with %v: %s, want %s", random, got, want)
		}
	}
	if got := delay(b, 1, 0, 9*time.Second); got != 9*time.Second {
		t.Errorf("jitter goes below what the subscriber asked for: %s", got)
	}
}

// Whatever the policy, a delay is never negative, never above the cap unless the
// subscriber asks for more, never below the time that the subscriber asks for, and never
// shorter for a later attempt.
func TestDelayHoldsItsBounds(t *testing.T) {
	t.Parallel()
	kinds := []config.BackoffKind{config.Constant, config.Linear, config.Exponential}
	holds := func(kind uint8, first, limit, after int64, attempt uint16, jitter bool, random uint32) bool {
		b := config.Backoff{Kind: kinds[int(kind)%3], First: time.Duration(first), Cap: time.Duration(limit), Jitter: jitter}
		r := float64(random) / (1 << 32)
		got := delay(b, int(attempt), r, time.Duration(after))
		floor, whole := time.Duration(max(after, 0)), b
		whole.Jitter = false
		most := delay(whole, int(attempt), r, 0)
		if b.Cap > 0 && most > b.Cap {
			return false
		}
		return got >= floor && got >= most/2 && got <= max(most, floor) && delay(whole, int(attempt)+1, r, 0) >= most
	}
	if err := quick.Check(holds, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
}

// Forty attempts with the default policy take three hours of virtual time.
func TestFortyAttemptsOfBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := config.Backoff{Kind: config.Exponential, First: time.Second, Cap: 5 * time.Minute, Jitter: true}
		random := rand.New(rand.NewPCG(1, 2))
		began := time.Now()
		for attempt := 1; attempt < 40; attempt++ {
			before := time.Now()
			time.Sleep(delay(b, attempt, random.Float64(), 0))
			whole := min(b.First<<(attempt-1), b.Cap)
			if attempt > 20 {
				whole = b.Cap
			}
			if waited := time.Since(before); waited < whole/2 || waited > whole {
				t.Errorf("after attempt %d it waits %s, want %s to %s", attempt, waited, whole/2, whole)
			}
		}
		const least, most = (511*time.Second + 30*5*time.Minute) / 2, 511*time.Second + 30*5*time.Minute
		if took := time.Since(began); took < least || took > most {
			t.Errorf("forty attempts take %s, want %s to %s", took, least, most)
		}
	})
}
