//go:build slow

package schedule

import (
	"testing"
	"time"

	"tidemill.dev/config"
)

// Two hundred thousand keys need many small transactions, and no tick is too late because
// the transactions before it took long.
func TestVeryManyKeys(t *testing.T) {
	keys := keysOf(200_000)
	for _, spread := range []time.Duration{0, 2 * time.Hour} {
		d := newDesktop(t, eachSchedule("0 3 * * *", config.MissedSkip, spread), config.Schedule{Name: "other", Cron: "* * * * *", Missed: config.MissedAll})
		d.keys = func() []string { return keys }
		d.plan(moment(t, "02:59:30"))
		now := moment(t, "03:00")
		if spread > 0 {
			now = moment(t, "05:00")
			d.states["s"] = state{Cron: "0 3 * * *", TimeZone: "UTC", Spread: spread, From: moment(t, "02:00"), Through: moment(t, "04:59:30")}
		}
		got, most := map[string]int{}, 0
		for {
			p := d.plan(now)
			most = max(most, len(p.ticks))
			for _, tick := range p.ticks {
				if tick.Schedule == "s" {
					got[tick.Key]++
				}
			}
			if !p.more && len(p.asks) == 0 {
				break
			}
			now = now.Add(10 * time.Second) // simulates a slow Kafka
		}
		want := 200_000
		if spread > 0 {
			want = 0
			for _, key := range keys {
				if at := moment(t, "03:00").Add(offset("s", key, spread)); at.After(moment(t, "04:59:30")) {
					want++
				}
			}
		}
		if len(got) != want || most > part+enough || len(d.states["s"].Skipped) > 0 {
			t.Errorf("%d keys of %d, %d ticks in one transaction, skipped %v", len(got), want, most, d.states["s"].Skipped)
		}
		for key, n := range got {
			if n != 1 {
				t.Fatalf("%s ticked %d times", key, n)
			}
		}
	}
}

// Tens of thousands of ticks are written to the stream, each once.
func TestVeryManyTicksOnKafka(t *testing.T) {
	const many = 40_000
	w := newWorld(t)
	s := eachSchedule("0 0 1 1 *", config.MissedLast, 0)
	from := time.Date(time.Now().UTC().Year(), 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Hour)
	w.write(mark{Turn: "t", At: from, Full: true, States: map[string]state{"s": begun(&s, from)}})
	keys := keysOf(many)
	began := time.Now()
	k := w.controller(Options{Lease: 2 * time.Second, Keys: listing(keys...)}, s)
	w.poll("all are there", func() bool {
		ends, err := w.b.Ends(w.ctx(), "events")
		w.must(err)
		var n int64
		for _, end := range ends {
			n += end.Offset
		}
		return n >= many
	})
	t.Logf("%d ticks in %s", many, time.Since(began).Round(10*time.Millisecond))
	w.close(k)
	firings := w.firings()
	for name, n := range firings {
		if n != 1 {
			t.Fatalf("%s is there %d times", name, n)
		}
	}
	if len(firings) != many {
		t.Errorf("%d ticks", len(firings))
	}
}
