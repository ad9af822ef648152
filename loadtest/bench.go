package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

// The bars. Latency is printed next to that of a bare hop, so that a slow machine is noticed.
const (
	produceBar = 0.8
	consumeBar = 0.6
	allocBar   = 0.05 // allocations per record; a batch's allocations are spread over its records
	medianBar  = 3 * time.Millisecond
	tailBar    = 20 * time.Millisecond
)

// clientComparison is one comparison: the same task for both clients, round by round.
type clientComparison struct {
	name  string
	bar   float64
	ours  []task.Result
	franz []task.Result
}

func bench(ctx context.Context, p plan, stdout io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	folder, err := os.MkdirTemp("", "tidemill-loadtest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	s, err := startServer(ctx, []string{self, roleServe}, filepath.Join(folder, "data"))
	if err != nil {
		return err
	}
	missed, err := measure(ctx, p, self, folder, s, stdout)
	if err := errors.Join(err, s.stop()); err != nil {
		return err
	}
	if p.wants("score") {
		err := runScores(ctx, p.score(), stdout)
		if err != nil && !errors.Is(err, errMissed) {
			return err
		}
		missed = missed || err != nil
	}
	if missed && !p.smoke {
		return errMissed
	}
	return nil
}

func measure(ctx context.Context, p plan, self, folder string, s *childServer, stdout io.Writer) (missed bool, err error) {
	st, err := openStreams(ctx, s.addrs[0])
	if err != nil {
		return false, err
	}
	defer st.b.Close()
	r := &runner{plan: p, streams: st, addr: s.addrs[0]}
	t := newTable(stdout, p)
	if p.wants("latency") { // first, because the other parts write so much that the disk stays busy for a while
		l, err := r.latency(ctx)
		if err != nil {
			return false, err
		}
		t.latency(l)
	}
	if p.wants("door") {
		d, err := r.door(ctx, self, s)
		if err != nil {
			return false, err
		}
		t.door(d)
	}
	if p.wants("triggers") {
		g, err := r.triggers(ctx, self, s)
		if err != nil {
			return false, err
		}
		t.triggers(g)
	}
	if p.only == onlyDead { // the measurement of triggers has it, too
		alone, beside, err := r.compareDead(ctx, self, s)
		if err != nil {
			return false, err
		}
		t.dead(alone, beside)
	}
	if p.only == onlyParked {
		parked, err := (&triggersBench{runner: r, broker: s, self: self}).park(ctx)
		if err != nil {
			return false, err
		}
		t.parkedEvents(parked)
	}
	if p.wants("runs") {
		m, err := r.runs(ctx, self, folder)
		if err != nil {
			return false, fmt.Errorf("measure runs: %w", err)
		}
		t.runs(&m)
	}
	err = r.compareClients(ctx, self, folder, t)
	return t.missed, err
}

// compareClients runs the comparisons of clients.
func (r *runner) compareClients(ctx context.Context, self, folder string, t *table) (err error) {
	if !r.wants(task.Produce) && !r.wants(task.Consume) {
		return nil
	}
	if r.programs, err = findClients(ctx, self, r.franz, folder); err != nil {
		return err
	}
	if r.wants(task.Produce) {
		for _, linger := range []time.Duration{0, 5 * time.Millisecond} {
			d, err := r.produce(ctx, linger)
			if err != nil {
				return err
			}
			t.duel(d)
		}
	}
	if !r.wants(task.Consume) {
		return nil
	}
	d, err := r.compareConsumers(ctx)
	if err == nil {
		t.duel(d)
	}
	return err
}

func (p plan) wants(what string) bool { return p.only == "" || p.only == what }

type runner struct {
	plan
	programs clients
	streams  *streams
	addr     string
}

func (r *runner) task(do, stream string) task.Task {
	return task.Task{Do: do, Addr: r.addr, Topic: r.streams.names.Topic(stream), Warm: r.warm, Records: r.records, Reuse: r.reuse}
}

// runRounds runs a task with both clients. The clients take turns at being first.
func (r *runner) runRounds(ctx context.Context, d *clientComparison, one func(ctx context.Context, program []string, profile string) (task.Result, error)) error {
	turns := []struct {
		program []string
		profile string
		into    *[]task.Result
	}{{r.programs.ours, r.profile, &d.ours}, {r.programs.franz, "", &d.franz}}
	for range r.plan.rounds {
		for _, turn := range turns {
			res, err := one(ctx, turn.program, turn.profile)
			if err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			*turn.into = append(*turn.into, res)
		}
		turns[0], turns[1] = turns[1], turns[0]
	}
	return nil
}

func (r *runner) produce(ctx context.Context, linger time.Duration) (*clientComparison, error) {
	d := &clientComparison{name: fmt.Sprintf("produce, linger %s", linger), bar: produceBar}
	return d, r.runRounds(ctx, d, func(ctx context.Context, program []string, profile string) (task.Result, error) {
		stream, err := r.streams.newStream(ctx)
		if err != nil {
			return task.Result{}, err
		}
		t := r.task(task.Produce, stream)
		t.Linger, t.Profile = linger, profile
		res, err := runClient(ctx, program, t)
		return res, errors.Join(err, r.streams.remove(ctx, stream))
	})
}

// compareConsumers fills one stream. Both clients read it from its beginning, with a new group each
// time.
func (r *runner) compareConsumers(ctx context.Context) (*clientComparison, error) {
	d := &clientComparison{name: "consume", bar: consumeBar}
	stream, err := r.streams.newStream(ctx)
	if err != nil {
		return d, err
	}
	fill := r.task(task.Produce, stream)
	fill.Records += 4 * task.FetchBytes / task.DataBytes // a client reads whole fetches
	if _, err := runClient(ctx, r.programs.ours, fill); err != nil {
		return d, err
	}
	round := 0
	err = r.runRounds(ctx, d, func(ctx context.Context, program []string, profile string) (task.Result, error) {
		round++
		t := r.task(task.Consume, stream)
		t.Group, t.Profile = fmt.Sprintf("load-%d", round), profile
		return runClient(ctx, program, t)
	})
	return d, errors.Join(err, r.streams.remove(ctx, stream))
}
