package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// TestChaosOfTheClock kills controllers, broker and Redis while two schedules tick every second.
// Each tick must be on the stream once, and the ticks of a key must be in order. The settings are
// those of TestChaos.
func TestChaosOfTheClock(t *testing.T) {
	t.Parallel()
	rounds, first := seeds(t, 4, 4)
	atOnce := setting(t, "AT_ONCE", 2)
	places := make(chan struct{}, atOnce)
	for i := range rounds {
		p := clockPlanOf(uint64(first + i))
		t.Run("seed "+strconv.FormatUint(p.seed, 10), func(t *testing.T) {
			t.Parallel()
			places <- struct{}{}
			defer func() { <-places }()
			playClock(t, p)
		})
	}
}

func playClock(t *testing.T, p plan) {
	dir, err := os.MkdirTemp("", "tidemill-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	r := &clockRound{round: round{plan: p, dir: dir}}
	var found faults
	if err := r.play(t.Context()); err != nil {
		found = faults{err.Error()}
	} else {
		found = r.judge()
	}
	timeline, failures := r.fleet.story()
	for _, err := range failures {
		found = append(found, err.Error())
	}
	if len(found) > 0 {
		logReport(t, &r.round, found, timeline)
		return
	}
	t.Logf("seed %d, %s: %d ticks, %d blows, %d takeovers", p.seed, p.profile, len(r.ticks), len(p.blows), r.takeovers())
	if os.Getenv("TIDEMILL_CHAOS_KEEP") == "" {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}

type clockRound struct {
	round
	ticks []firing
}

func (r *clockRound) play(ctx context.Context) error {
	addrs, err := freeAddrs(2)
	if err != nil {
		return err
	}
	r.fleet = newFleet(r.dir, addrs[0], r.plan.seed)
	defer r.fleet.killAll()
	servers := []string{brokerName}
	if r.plan.profile != clockAlone {
		r.fleet.env = []string{envRedis + "=" + addrs[1]}
		servers = append(servers, redisName)
	}
	for _, name := range servers {
		if err := r.fleet.start(name); err != nil {
			return err
		}
	}
	b, err := openBroker(ctx, addrs[0], slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.EnsureStreams(ctx, []broker.StreamSpec{{Name: tidemill.StreamEvents, Partitions: partitions, KeyOrdered: true},
		{Name: tidemill.StreamClock, Partitions: 1, KeyOrdered: true}}, broker.EnsureOptions{}); err != nil {
		return err
	}
	if err := r.strike(names("controller", controllers)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	if err := r.awaitTicks(ctx, b, time.Now()); err != nil {
		return err
	}
	if err := r.fleet.stop(names("controller", controllers)...); err != nil {
		return err
	}
	r.ticks, err = readTicks(ctx, b)
	return errors.Join(err, r.fleet.stop(servers...))
}

// awaitTicks waits until the clock has caught up with a time for all keys.
func (r *clockRound) awaitTicks(ctx context.Context, b *broker.Broker, at time.Time) error {
	for {
		all, err := readTicks(ctx, b)
		behind := slices.DeleteFunc(all, func(f firing) bool { return !f.at.After(at) })
		if n := len(lanesOf(behind)); err == nil && n == clockLanes {
			return nil
		} else if wait(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("after %s %d of %d keys have a tick of a time behind the last blow: %w", drainLimit, n, clockLanes, err)
		}
	}
}

const clockLanes = 6 + 8 // number of keys of both schedules

// lanesOf returns the ticks of each key of each schedule.
func lanesOf(ticks []firing) map[string][]firing {
	lanes := map[string][]firing{}
	for _, t := range ticks {
		name := t.schedule + "/" + t.key
		lanes[name] = append(lanes[name], t)
	}
	return lanes
}

// judge checks that there is one tick for each time of the schedule, from each key's first tick to
// its last, and that they are in order on their partition.
func (r *clockRound) judge() faults {
	var f faults
	lanes := lanesOf(r.ticks)
	if len(lanes) != clockLanes {
		f.add("%d of %d keys have ticked", len(lanes), clockLanes)
	}
	for name, all := range lanes {
		step := time.Second
		if strings.HasPrefix(name, "laid") {
			step = 2 * time.Second
		}
		for i := 1; i < len(all); i++ {
			switch before := all[i-1]; {
			case all[i].at.Equal(before.at):
				f.add("duplicate: %s of %s stands at %d/%d and %d/%d", name, all[i].at, before.partition, before.offset, all[i].partition, all[i].offset)
			case all[i].at.Before(before.at):
				f.add("disorder: %s of %s stands behind that of %s", name, all[i].at, before.at)
			case !all[i].at.Equal(before.at.Add(step)):
				f.add("lost: %s has nothing between %s and %s", name, before.at, all[i].at)
			case all[i].partition != before.partition:
				f.add("astray: %s stands on partitions %d and %d", name, before.partition, all[i].partition)
			}
		}
	}
	return f
}

// takeovers counts how often a controller became the active one.
func (r *clockRound) takeovers() (n int) {
	for _, name := range names("controller", controllers) {
		for life := range r.fleet.lives[name] {
			text, err := os.ReadFile(fmt.Sprintf("%s/%s.%d.log", r.dir, name, life))
			if err == nil {
				n += strings.Count(string(text), "controller: this process sends the ticks")
			}
		}
	}
	return n
}
