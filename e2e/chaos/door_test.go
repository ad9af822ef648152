package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestChaosOfTheDoor kills gateways, broker and Redis while senders publish over HTTP. Every event
// with a 202 must be on the stream. The settings are those of TestChaos.
func TestChaosOfTheDoor(t *testing.T) {
	t.Parallel()
	rounds, first := seeds(t, 5, 2)
	atOnce := setting(t, "AT_ONCE", 2)
	sum := &figures{counts: map[string]int{}}
	t.Cleanup(func() { t.Logf("seeds %d to %d: %v", first, first+rounds-1, sum.counts) })
	places := make(chan struct{}, atOnce)
	for i := range rounds {
		p := doorPlanOf(uint64(first + i))
		t.Run("seed "+strconv.FormatUint(p.seed, 10), func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			playDoor(t, p, sum)
		})
	}
}

func playDoor(t *testing.T, p plan, sum *figures) {
	dir, err := os.MkdirTemp("", "tidemill-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	r := &round{plan: p, dir: dir}
	played := r.playDoor(t.Context())
	var found faults
	if played == nil {
		found = r.judgeDoor()
	} else {
		found = faults{played.Error()}
	}
	timeline, failures := r.fleet.story()
	for _, err := range failures {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		logReport(t, r, found, timeline)
		return
	}
	sum.addDoor(r)
	t.Logf("seed %d, %s: %d events, %d blows; %s", p.seed, p.profile, len(r.in), len(p.blows), r.answerSummary())
	if os.Getenv("TIDEMILL_CHAOS_KEEP") == "" {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}

// playDoor runs the plan to its end and reads the streams.
func (r *round) playDoor(ctx context.Context) error {
	addrs, err := freeAddrs(2 + gateways)
	if err != nil {
		return err
	}
	r.fleet = newFleet(r.dir, addrs[0], r.plan.seed)
	r.fleet.env = []string{envRedis + "=" + addrs[1], envGateways + "=" + strings.Join(addrs[2:], ",")}
	defer r.fleet.killAll()
	for _, name := range append([]string{brokerName, redisName}, names("gateway", gateways)...) {
		if err := r.fleet.start(name); err != nil {
			return err
		}
	}
	b, err := openBroker(ctx, addrs[0], slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := r.strike(names("sender", senders)); err != nil {
		return err
	}
	if err := r.fleet.stop(names("sender", senders)...); err != nil {
		return err
	}
	if err := r.fleet.stop(names("gateway", gateways)...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	r.in, err = readStream(ctx, b, streamIn)
	journal, err2 := readJournals(r.dir, "")
	r.journal = journal
	return errors.Join(err, err2, r.fleet.stop(redisName, brokerName))
}

func (s *figures) addDoor(r *round) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["rounds"]++
	s.counts["events"] += len(r.in)
	ids := map[string]bool{}
	for _, e := range r.in {
		if ids[e.id] {
			s.counts["doubled by a retry"]++
		}
		ids[e.id] = true
	}
	for _, e := range r.journal {
		switch e.verb {
		case "absent", "broken":
			s.counts[e.verb]++
		case "answer":
			s.counts[e.words[0]]++
		case "ack":
			s.counts["acknowledged"]++
			if e.words[2] == "true" {
				s.counts["repeats recognised"]++
			}
		}
	}
}

// answerSummary sums up a round's answers.
func (r *round) answerSummary() string {
	one := &figures{counts: map[string]int{}}
	one.addDoor(r)
	return fmt.Sprint(one.counts)
}
