package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/task"
)

// scorerTask is the argument of a scorer's process.
type scorerTask struct {
	Addresses config.Addresses
	Config    string // config with one scorer
	Memory    int64  // memory for models; 0 is the default
	Profile   string // folder for profiles; empty for no profiles
	What      string // name of the measurement, for the profile's file name
	Cores     int    // number of cores that it may use; 0 is all
	Parts     string // partsBoth or partsObserver; empty is the scorer alone
}

// The parts of a scorer's process.
const (
	partsBoth     = "scorer and observer"
	partsObserver = "observer"
)

// The commands of a scorer's process, besides those of every server.
const (
	sayUntil   = "until"   // argument N: answer when N events have been scored
	sayDrained = "drained" // answer when no event waits for its model
)

// runScorer runs the scorer's process, wired like `tidemill serve scorer`.
func runScorer(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var t scorerTask
	if len(args) != 1 {
		return errors.New("scorer: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	if t.Cores > 0 {
		runtime.GOMAXPROCS(t.Cores)
	}
	conf, err := config.Parse("the load test's config", []byte(t.Config))
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true, Addresses: t.Addresses,
		Telemetry: &telemetry.Options{Version: "loadtest"}, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), Scoring: platform.ScoringOptions{Memory: t.Memory}})
	if err != nil {
		return err
	}
	if err := t.openParts(ctx, p); err != nil {
		return errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	fmt.Fprintln(stdout, "open")
	s := &scorerSays{p: p, stdout: stdout, task: task.Task{Do: roleScorer + "-" + t.What, Profile: t.Profile}}
	return errors.Join(s.obey(ctx, stdin), p.Close(context.WithoutCancel(ctx)))
}

func (t *scorerTask) openParts(ctx context.Context, p *platform.Platform) (err error) {
	if t.Parts != partsObserver {
		err = p.Scorers(ctx, "")
	}
	if err == nil && t.Parts != "" {
		err = p.Observer(ctx)
	}
	return err
}

// scorerSays answers the parent's commands.
type scorerSays struct {
	p      *platform.Platform
	stdout io.Writer
	task   task.Task
	meter  task.Meter
	began  uint64 // number of events that had been scored when the meter was started
}

func (s *scorerSays) obey(ctx context.Context, stdin io.Reader) error {
	for told := bufio.NewScanner(stdin); told.Scan(); {
		r, err := s.answer(ctx, told.Text())
		if err == nil {
			err = r.Write(s.stdout)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *scorerSays) answer(ctx context.Context, told string) (r task.Result, err error) {
	word, rest, _ := strings.Cut(told, " ")
	switch word {
	case sayUntil:
		return s.until(ctx, rest)
	case sayDrained:
		return s.pollUntil(ctx, func(now score.Standing) bool { return now.Held == 0 })
	case sayStart:
		if err = s.meter.Start(s.task); err == nil {
			s.began = s.standing().Scored
		}
	case sayStop:
		t := s.task
		t.Records = int(s.standing().Scored - s.began)
		return s.meter.Stop(t)
	case sayWeigh:
		return task.Weigh(), nil
	default:
		err = fmt.Errorf("cannot %q", told)
	}
	return r, err
}

func (s *scorerSays) standing() score.Standing {
	for _, one := range s.p.ScorerStandings() {
		return one
	}
	return score.Standing{}
}

// untilEvery is the interval of the checks. Events that are scored until the next check count.
const untilEvery = 20 * time.Millisecond

// stuckAfter is the time without a scored event after which the scorer counts as stuck.
const stuckAfter = time.Minute

func (s *scorerSays) until(ctx context.Context, text string) (r task.Result, err error) {
	var wanted uint64
	if _, err := fmt.Sscan(text, &wanted); err != nil {
		return r, fmt.Errorf("until how many? %w", err)
	}
	return s.pollUntil(ctx, func(now score.Standing) bool { return now.Scored+now.DeadLettered >= wanted })
}

// pollUntil polls until enough returns true, as long as events are being scored.
func (s *scorerSays) pollUntil(ctx context.Context, enough func(score.Standing) bool) (r task.Result, err error) {
	var last uint64
	tick := time.NewTicker(untilEvery)
	defer tick.Stop()
	for moved := time.Now(); ; {
		now := s.standing()
		switch {
		case enough(now):
			return task.Result{Records: int(now.Scored)}, nil
		case now.Scored > last:
			last, moved = now.Scored, time.Now()
		case time.Since(moved) > stuckAfter:
			now.Swaps = nil
			return r, fmt.Errorf("nothing is scored any more: %+v", now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
}
