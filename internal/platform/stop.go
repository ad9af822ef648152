package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Stage is a step of the stop order, which is defined only here: attempts saved and reported →
// doors closed → consumers drained → producers flushed → offsets committed → group left → clients
// closed → traces sent, those of the stop included. Draining, committing and leaving are one stage,
// because a consumer does them together: an event counts as drained only when its output has been
// acknowledged. So a handler's producer is flushed while its consumer drains, and the stage
// Producers only closes that producer.
type Stage int

// Each stage leaves some of Close's time to the later ones. Otherwise a Kafka that hangs could use
// all the time in one stage. A process uses 25 s of the 30 s that Kubernetes gives a pod. Counted
// from the stop:
//
//	attempts   end by 10 s: commands are asked to save and exit, and the agents
//	           report that to the gateway
//	doors      end by 20 s: at most 15 s of drain delay, then running requests;
//	           those that wait for Kafka are answered at 18 s: in doubt
//	consumers  by 22 s
//	producers  by 23 s: unacknowledged events are lost; they were reported in doubt
//	clients    by 24 s: marks of repeats reach Redis
//	traces     by 25 s, and the embedded servers, which need no time
// If Close has less time, each stage leaves at most two thirds of the rest.

// The stages in order.
const (
	attempts  Stage = iota // no attempt runs on this machine after it
	Doors                  // no new request is accepted after it
	Consumers              // consumers have drained, committed and left their group
	Producers              // producers are flushed
	clients                // connections are closed
	traces                 // traces are sent
	lastly                 // embedded servers are stopped
	stages
)

// stopOrder holds the steps of Close, by stage.
type stopOrder struct {
	mu    sync.Mutex
	steps [stages][]stopStep
	taken [stages]bool // stages that have begun
}

type stopStep struct {
	what string
	stop func(context.Context) error
}

// untilStop runs tasks until a stage of the stop order, which ends them and waits for their ends.
func (p *Platform) untilStop(ctx context.Context, s Stage, what string, tasks ...func(context.Context)) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, task := range tasks {
		running.Go(func() { task(ctx) })
	}
	p.AtStop(s, what, func(context.Context) error {
		stop()
		running.Wait()
		return nil
	})
}

// endless returns a task that logs if run ends by itself.
func (p *Platform) endless(what string, run func(context.Context) error) func(context.Context) {
	return func(ctx context.Context) {
		if err := run(ctx); ctx.Err() == nil {
			p.log.Error("controller: "+what+" ended", "reason", err)
		}
	}
}

// AtStop makes Close call stop in a stage. Within a stage, later steps are called first. If the stage has
// begun, AtStop calls stop at once: a task that Close had no time to wait for has opened something.
func (p *Platform) AtStop(s Stage, what string, stop func(context.Context) error) {
	if p.stops.add(s, stopStep{what, stop}) {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := stop(ended); err != nil {
		p.log.Debug("platform: closing what was opened during the stop failed", "what", what, "reason", err)
	}
}

// add adds a step, unless its stage has begun.
func (o *stopOrder) add(s Stage, step stopStep) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.taken[s] {
		o.steps[s] = append(o.steps[s], step)
	}
	return !o.taken[s]
}

// Close stops everything in the stop order. Each stage leaves time to the later ones. If a step
// fails, the next steps still run. A second Close does nothing.
func (p *Platform) Close(ctx context.Context) error {
	var failed []error
	for stage := range stages {
		failed = append(failed, p.stops.run(ctx, stage))
	}
	return errors.Join(failed...)
}

func (o *stopOrder) run(ctx context.Context, s Stage) error {
	if late, ok := ctx.Deadline(); ok {
		limited, cancel := context.WithDeadline(ctx, late.Add(-min(s.reservedTime(), max(0, time.Until(late)*2/3))))
		defer cancel()
		ctx = limited
	}
	var failed []error
	for _, step := range slices.Backward(o.take(s)) {
		if err := step.stop(ctx); err != nil {
			failed = append(failed, fmt.Errorf("stop %s: %w", step.what, err))
		}
	}
	return errors.Join(failed...)
}

// reservedTime returns the part of Close's time that is reserved for later stages.
func (s Stage) reservedTime() time.Duration {
	switch s {
	case attempts:
		return 15 * time.Second
	case Doors:
		return 5 * time.Second
	case Consumers:
		return 3 * time.Second
	case Producers:
		return 2 * time.Second
	case clients:
		return time.Second
	}
	return 0
}

func (o *stopOrder) take(s Stage) []stopStep {
	o.mu.Lock()
	defer o.mu.Unlock()
	steps := o.steps[s]
	o.steps[s], o.taken[s] = nil, true
	return steps
}
