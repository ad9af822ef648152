package chaos

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestChaosOfTriggers kills dispatchers, and sometimes the broker, while events go to a moody sink.
// Every event must arrive and have one reply, and keys must keep their order. Dead subscribers may
// delay no other trigger and lose no event. The settings are those of TestChaos.
func TestChaosOfTriggers(t *testing.T) {
	t.Parallel()
	rounds, first := seeds(t, 6, 1)
	atOnce := setting(t, "AT_ONCE", 3)
	fewer := 1
	if raceDetector {
		fewer = 4
	}
	sum := &figures{counts: map[string]int{}}
	t.Cleanup(func() { t.Logf("seeds %d to %d: %v", first, first+rounds-1, sum.counts) })
	places := make(chan struct{}, atOnce)
	for i := range rounds {
		p := triggersPlanOf(uint64(first + i))
		p.events /= fewer
		t.Run("seed "+strconv.FormatUint(p.seed, 10), func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			r := newTriggersRound(t, p)
			if err := r.ownBroker(); err != nil {
				t.Fatal(err)
			}
			playTriggers(t, r, sum)
		})
	}
}

func newTriggersRound(t *testing.T, p triggersPlan) *triggersRound {
	dir, err := os.MkdirTemp("", "tidemill-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	r := &triggersRound{round: round{plan: p.plan, dir: dir}, drawn: p}
	if r.sink, err = openSink(p.seed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.sink.close)
	return r
}

func playTriggers(t *testing.T, r *triggersRound, sum *figures) {
	began := time.Now()
	played := r.play(t.Context())
	var found faults
	if played != nil {
		found = append(found, played.Error())
	}
	found = append(append(found, r.wrong...), r.story.judge()...)
	if played == nil {
		r.story.judgeCalm(&found, r.drawn.events, r.calmFrom)
	}
	timeline, failures := r.fleet.story()
	for _, err := range failures {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		r.keepStory(t)
		logReport(t, &r.round, found, timeline)
		return
	}
	sum.addTriggers(r)
	one := &figures{counts: map[string]int{}}
	one.addTriggers(r)
	t.Logf("seed %d, %s: %d blows; the living had all %s after the last event, the dead %s after they were revived, %s in all; %v", r.plan.seed, r.plan.profile,
		len(r.plan.blows), r.living.Round(time.Millisecond), r.revived.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), one.counts)
	if os.Getenv("TIDEMILL_CHAOS_KEEP") == "" {
		if err := os.RemoveAll(r.dir); err != nil {
			t.Error(err)
		}
	}
}

// keepStory writes the sink's record next to the logs.
func (r *triggersRound) keepStory(t *testing.T) {
	var text []byte
	for _, a := range r.story.attempts {
		text = fmt.Appendf(text, "%s %s of %s began %d ended %d with %d\n", a.rule, a.id, keyOf(numberOf(a.id)), a.began, a.ended, a.status)
	}
	if err := os.WriteFile(r.dir+"/sink", text, 0o600); err != nil {
		t.Error(err)
	}
}

// addTriggers counts a round. The figures are not asserted, because the number of repeated
// deliveries depends on the kills.
func (s *figures) addTriggers(r *triggersRound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["rounds"]++
	s.counts["events"] += r.sent
	s.counts["attempts"] += len(r.story.attempts)
	s.counts["letters"] += len(r.story.letters)
	fine := map[string]bool{}
	for _, a := range r.story.attempts {
		if name := a.rule + " " + a.id; a.fine() {
			if fine[name] {
				s.counts["delivered again"]++
			}
			fine[name] = true
		}
	}
	ids := map[string]bool{}
	for _, p := range r.story.replies {
		ids[p.id] = true
	}
	s.counts["replies"] += len(ids)
	s.counts["copies of replies"] += len(r.story.replies) - len(ids)
}
