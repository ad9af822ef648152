package kube

import (
	"testing"
	"time"

	"tidemill.dev/config"
)

var modest = config.Replicas{Min: 0, Max: 4, Lag: 1000, Idle: time.Minute} // read only

func TestHowManyReplicasALagAsksFor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	quiet := tide{have: 1, busy: now.Add(-2 * time.Minute), calm: calm, known: true, models: 7}
	recent := quiet
	recent.busy = now.Add(-time.Second)
	at := func(t tide, have int) tide { t.have = have; return t }
	for name, c := range map[string]struct {
		t    tide
		l    Lag
		have int
		r    config.Replicas
		want int
	}{
		"nothing to do":                        {at(quiet, 0), Lag{}, 0, modest, 0},
		"one event wakes one":                  {at(quiet, 0), Lag{Behind: 1}, 0, modest, 1},
		"many events wake many at once":        {at(quiet, 0), Lag{Behind: 2500}, 0, modest, 3},
		"no more than may be":                  {at(quiet, 0), Lag{Behind: 1e9}, 0, modest, 4},
		"no more than there are partitions":    {at(quiet, 0), Lag{Behind: 1e9, Partitions: 2}, 0, modest, 2},
		"up quickly":                           {recent, Lag{Behind: 3001}, 1, modest, 4},
		"no lag, and events a moment ago":      {recent, Lag{}, 1, modest, 1},
		"no lag, and no events for long":       {quiet, Lag{}, 1, modest, 0},
		"all go that may":                      {at(quiet, 4), Lag{}, 4, modest, 0},
		"no fewer than must be":                {at(quiet, 4), Lag{}, 4, config.Replicas{Min: 2, Max: 4, Lag: 10, Idle: time.Minute}, 2},
		"a floor is filled":                    {at(quiet, 0), Lag{}, 0, config.Replicas{Min: 2, Max: 4, Lag: 10, Idle: time.Minute}, 2},
		"the stream grew, and all is scored":   {quiet, Lag{Newest: now.Add(-time.Second)}, 1, modest, 1},
		"fewer would do, but not for long yet": {at(recent, 3), Lag{Behind: 1}, 3, modest, 3},
		"held, and no model came":              {at(quiet, 0), Lag{Held: true, Models: 7}, 0, modest, 0},
		"held, and a model came":               {at(quiet, 0), Lag{Held: true, Models: 8}, 0, modest, 1},
		"a model came, and nothing is held":    {at(quiet, 0), Lag{Models: 8}, 0, modest, 0},
		"held, and it is not known since when": {tide{}, Lag{Held: true, Models: 8}, 0, modest, 1},
		"a keeper that has just begun waits":   {tide{}, Lag{}, 2, modest, 2},
		"a config without bounds":              {at(quiet, 0), Lag{Behind: 5}, 0, config.Replicas{}, 1},
	} {
		if got, _ := want(c.t, c.l, c.have, c.r, now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A day with a tide in it, looked at every lookEvery: what has to be there is
// there at once, and nothing comes and goes.
func TestScalingDoesNotFlap(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	var state tide
	have, ups, downs := 0, 0, 0
	var behind, each float64 = 0, 900 // events a second that one replica scores
	for second := range 4 * 3600 {
		rate := 0.0 // of events that come
		if second >= 600 && second < 3*3600 {
			rate = 1500 // two replicas are enough, and one is not
		}
		for range 2 {
			now = now.Add(500 * time.Millisecond)
			behind = max(0, behind+rate/2-each*float64(have)/2)
			l := Lag{Behind: int64(behind)}
			if rate > 0 {
				l.Newest = now
			}
			n, next := want(state, l, have, modest, now)
			if n > have {
				ups++
			} else if n < have {
				downs++
			}
			have, state = n, next
		}
		if second == 601 && have == 0 || second == 3*3600+120 && have > 0 {
			t.Errorf("after %d s there are %d replicas", second, have)
		}
	}
	if ups > 25 || downs > 25 {
		t.Errorf("in four hours it went up %d times and down %d times", ups, downs)
	}
}
