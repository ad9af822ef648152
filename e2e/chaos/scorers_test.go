package chaos

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// TestChaosOfScorers kills scorers, and sometimes Kafka and Redis, while events come and champions
// change. Every event must have one end, and keys must keep their order. Versions must not go back,
// and only champions may answer. The settings are those of TestChaos.
func TestChaosOfScorers(t *testing.T) {
	t.Parallel()
	rounds, first := seeds(t, 6, 3)
	atOnce := setting(t, "AT_ONCE", 3)
	fewer := 1
	if raceDetector {
		fewer = 4
	}
	sum := &figures{counts: map[string]int{}}
	t.Cleanup(func() { t.Logf("seeds %d to %d: %v", first, first+rounds-1, sum.counts) })
	places := make(chan struct{}, atOnce)
	for i := range rounds {
		p := scorersPlanOf(uint64(first + i))
		p.events /= fewer
		t.Run("seed "+strconv.FormatUint(p.seed, 10), func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			r := newScorersRound(t, p)
			if err := r.ownServers(); err != nil {
				t.Fatal(err)
			}
			playScorers(t, r, sum)
		})
	}
}

func newScorersRound(t *testing.T, p scorersPlan) *scorersRound {
	dir, err := os.MkdirTemp("", "tidemill-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	return &scorersRound{round: round{plan: p.plan, dir: dir}, drawn: p}
}

func playScorers(t *testing.T, r *scorersRound, sum *figures) {
	began := time.Now()
	played := r.play(t.Context())
	var found faults
	if played != nil {
		found = append(found, played.Error())
	}
	found = append(found, r.story.judge(&r.models)...)
	timeline, failures := r.fleet.story()
	for _, err := range failures {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		logReport(t, &r.round, found, timeline)
		return
	}
	sum.addScorers(r)
	one := &figures{counts: map[string]int{}}
	one.addScorers(r)
	t.Logf("seed %d, %s: %d blows; all was scored %s after the last event, %s in all; %v", r.plan.seed, r.plan.profile, len(r.plan.blows),
		r.drained.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), one.counts)
	if os.Getenv("TIDEMILL_CHAOS_KEEP") == "" {
		if err := os.RemoveAll(r.dir); err != nil {
			t.Error(err)
		}
	}
}

// addScorers counts a round. The figures are not asserted.
func (f *figures) addScorers(r *scorersRound) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts["rounds"]++
	f.counts["events"] += r.sent
	f.counts["facts"] += r.models.n
	f.counts["letters"] += len(r.story.letters)
	f.counts["swaps"] += len(r.story.swaps)
	for _, o := range r.story.out {
		if o.model == "" {
			f.counts["passed on"]++
		} else {
			f.counts["scored"]++
		}
	}
}
