package chaos

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestChaos plays rounds and judges them. Six rounds have each kind of fault, a thousand find
// rare ones. The simulator in e2e/sim plays many more, and these rounds prove what it assumes about processes and disks.
func TestChaos(t *testing.T) {
	t.Parallel()
	rounds, first := seeds(t, 6, 4)
	atOnce := setting(t, "AT_ONCE", 2)
	sum := &figures{counts: map[string]int{}}
	t.Cleanup(func() { t.Logf("seeds %d to %d: %v", first, first+rounds-1, sum) })
	places := make(chan struct{}, atOnce)
	for i := range rounds {
		p := planOf(uint64(first + i))
		t.Run("seed "+strconv.FormatUint(p.seed, 10), func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			playRound(t, p, sum)
		})
	}
}

// seeds returns the number of rounds and the seed of the first. `make test` plays one storm of each
// test. `make chaos` plays many rounds without the race detector, because the detector makes a
// round five times as slow.
func seeds(t *testing.T, many, storm int) (rounds, first int) {
	if raceDetector || !allRounds {
		return setting(t, "ROUNDS", 1), setting(t, "SEED", storm)
	}
	if testing.Short() {
		many = min(many, 2)
	}
	return setting(t, "ROUNDS", many), setting(t, "SEED", 1)
}

func setting(t *testing.T, name string, otherwise int) int {
	text := os.Getenv("TIDEMILL_CHAOS_" + name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("TIDEMILL_CHAOS_%s=%q: give a number from 1", name, text)
	}
	return n
}

func playRound(t *testing.T, p plan, sum *figures) {
	dir, err := os.MkdirTemp("", "tidemill-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	r := &round{plan: p, dir: dir}
	began := time.Now()
	played := r.play(t.Context())
	var found faults
	if r.journal != nil {
		found = r.judge()
	}
	timeline, failures := r.fleet.story()
	if played != nil {
		found = append(found, played.Error())
	}
	for _, err := range failures {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		logReport(t, r, found, timeline)
		return
	}
	sum.add(r)
	t.Logf("seed %d, %s: %d events, %d blows, %d skips by read-back, drained in %s, %s in all", p.seed, p.profile, len(r.in), len(p.blows),
		r.count("skip"), r.drained.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if os.Getenv("TIDEMILL_CHAOS_KEEP") != "" {
		t.Logf("kept in %s\n  %s", dir, strings.Join(timeline, "\n  "))
	} else if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

func (r *round) count(verb string) int {
	n := 0
	for _, e := range r.journal {
		if e.verb == verb {
			n++
		}
	}
	return n
}

const shownFaults = 20

// logReport logs the data that helps to find the cause, and keeps the round's folder.
func logReport(t *testing.T, r *round, found faults, timeline []string) {
	t.Helper()
	var blows []string
	for _, b := range r.plan.blows {
		blows = append(blows, b.String())
	}
	story := filepath.Join(r.dir, "timeline")
	if err := os.WriteFile(story, []byte(strings.Join(append(timeline, found...), "\n")+"\n"), 0o644); err != nil {
		t.Error(err)
	}
	shown := found[:min(len(found), shownFaults)]
	t.Errorf("seed %d, %s: %d faults:\n  %s\nplan:\n  %s\ntimeline:\n  %s\neverything is kept in %s", r.plan.seed, r.plan.profile, len(found),
		strings.Join(shown, "\n  "), strings.Join(blows, "\n  "), strings.Join(timeline, "\n  "), r.dir)
}
