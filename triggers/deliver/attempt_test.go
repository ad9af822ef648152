package deliver

import (
	"net/http"
	"testing"
	"time"

	"tidemill.dev/config"
)

// The test covers the table of Knative's data-plane contract and the status codes that it
// leaves open.
func TestJudge(t *testing.T) {
	t.Parallel()
	for want, codes := range map[verdict][]int{
		delivered: {200, 201, 202, 203, 204, 205, 206, 226, 299},
		again:     {404, 408, 409, 429, 500, 501, 502, 503, 504, 505, 599, 600, 999, 0},
		refused: {100, 101, 102, 103, 199, 300, 301, 302, 303, 304, 307, 308, 399,
			400, 401, 402, 403, 405, 406, 407, 410, 411, 412, 413, 414, 415, 417, 418, 421, 422, 423, 425, 426, 428, 431, 451, 499},
	} {
		for _, code := range codes {
			if got := judge(code); got != want {
				t.Errorf("%d is %s, want %s", code, got, want)
			}
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"7":                              7 * time.Second,
		" 120 ":                          2 * time.Minute,
		"3600":                           time.Hour,
		"3601":                           time.Hour,
		"9223372036854775807":            time.Hour,
		"99999999999999999999999":        time.Hour,
		"-5":                             0,
		"1.5":                            0,
		"1e9":                            0,
		"soon":                           0,
		"Sun, 01 Mar 2026 12:00:30 GMT":  30 * time.Second,
		"Sunday, 01-Mar-26 12:01:00 GMT": time.Minute,
		"Sun Mar  1 12:02:00 2026":       2 * time.Minute,
		"Sun, 01 Mar 2026 11:00:00 GMT":  0,
		"Fri, 01 Mar 9999 12:00:00 GMT":  time.Hour,
		"Mon, 01 Jan 0001 00:00:00 GMT":  0,
		now.Add(time.Minute).In(time.FixedZone("", 3600)).Format(http.TimeFormat): time.Hour, // the header says GMT, so the other zone is ignored
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q is %s, want %s", value, got, want)
		}
	}
}

// A pause does not keep an event beyond its expiry, because the log would then lose it.
func TestPausedEventsExpire(t *testing.T) {
	x := &quiet{p: lonePartition(time.Hour), now: 1_000_000}
	x.p.states["t"].paused = true
	began, expired := x.now, 0
	x.fails = func(i *item, _ millis) bool { return !i.expired }
	x.ended = func(*item) { expired++ }
	x.take(10, 10)
	for range 10_000 {
		x.send()
		x.write(t)
		x.load(t)
		next := x.p.deadline(x.now)
		for _, l := range x.p.states {
			next = min(next, l.nextLoad())
		}
		if x.now = max(x.now, next); expired == 10 {
			break
		}
		x.p.wake(x.now)
	}
	if waited := time.Duration(x.now-began) * time.Millisecond; expired != 10 || waited > 31*time.Minute {
		t.Errorf("%d have expired after %s", expired, waited)
	}
}

// Events whose record is lost also get their dead letter during a pause.
func TestPausedEventsThatAreLost(t *testing.T) {
	x := &quiet{p: lonePartition(config.Forever), now: 1_000_000}
	x.p.states["t"].paused = true
	x.fails = func(*item, millis) bool { return true }
	x.take(1, 1)
	for range 10 {
		x.now += 100
		x.send()
		x.write(t)
	}
	l := x.p.states["t"]
	l.paused = false
	loads := x.p.load(l, 1, x.now)
	l.paused = true
	x.p.giveDeadLetter(loads[0], "it is gone", x.now)
	if out := x.p.handOut(); len(out) != 1 || !x.p.start(out[0], x.now) {
		t.Error("there is no dead letter")
	}
}

// If a stream's retention is shortened, its waiting events expire earlier.
func TestAShorterRetentionHoldsForWhatWaits(t *testing.T) {
	x := &quiet{p: lonePartition(48 * time.Hour), now: 1_000_000, backoff: config.Backoff{Kind: config.Constant, First: 40 * time.Hour}}
	began, expired := x.now, 0
	x.fails = func(i *item, _ millis) bool { return !i.expired }
	x.ended = func(*item) { expired++ }
	x.take(10, 10)
	for x.p.states["t"].parked < 10 {
		x.send()
		x.write(t)
		x.now += 10
	}
	x.p.retain(4 * time.Hour)
	x.run(t, func() bool { return expired == 10 })
	if waited := time.Duration(x.now-began) * time.Millisecond; waited > 3*time.Hour {
		t.Errorf("they expired after %s, want half of four hours", waited)
	}
}
