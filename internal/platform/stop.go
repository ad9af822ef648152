package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Stage is a step of the stop order, which is written down here and nowhere
// else: attempts saved and told of → door closed → consumers drained → producers flushed → offsets committed
// → group left → clients closed → traces sent, those of the stop among them.
//
// Draining, committing and leaving are one stage, because a consumer does them
// in one go: an event counts as drained only when what was made of it has been
// acknowledged. So a handler's own producer is flushed while its consumer
// drains, and the producers' stage only ends them.
type Stage int

// Each stage leaves some of Close's time to those behind it, or a Kafka that
// stands still would take all of it for the first. A process gives 25 s of the
// 30 s that Kubernetes gives a pod; of these, counted from the stop,
//
//	attempts   end by 10 s: commands are asked to save and leave, and the agents
//	           tell of it through the door
//	doors      end by 20 s: at most 15 s of drain delay, then those under way;
//	           who waits for Kafka is told at 18 s that it is in doubt
//	consumers  by 22 s
//	producers  by 23 s: what is unacknowledged then is lost, and was in doubt
//	clients    by 24 s: marks of repeats reach Redis
//	traces     by 25 s, and the embedded servers, which need no time
//
// Where less is given, a stage leaves two thirds of what there is.

// The stages, in their order.
const (
	attempts  Stage = iota // none runs here any more
	Doors                  // nothing new comes in
	Consumers              // drained, committed, out of their group
	Producers              // flushed
	clients                // no connection is left
	traces                 // sent
	lastly                 // the embedded servers
	stages
)

// stopOrder is what is to be stopped, by stage.
type stopOrder struct {
	mu    sync.Mutex
	steps [stages][]stopStep
}

type stopStep struct {
	what string
	stop func(context.Context) error
}

// AtStop has Close call stop in its stage, and there before what was added
// earlier.
func (p *Platform) AtStop(s Stage, what string, stop func(context.Context) error) {
	p.stops.mu.Lock()
	defer p.stops.mu.Unlock()
	p.stops.steps[s] = append(p.stops.steps[s], stopStep{what, stop})
}

// Close stops everything in the stop order, each stage as long as the context
// allows and what it leaves to those behind it. A step that fails does not keep
// those behind it from their turn. A second Close finds nothing left to do.
func (p *Platform) Close(ctx context.Context) error {
	var failed []error
	for stage := range stages {
		failed = append(failed, p.stops.run(ctx, stage))
	}
	return errors.Join(failed...)
}

func (o *stopOrder) run(ctx context.Context, s Stage) error {
	if late, ok := ctx.Deadline(); ok {
		limited, cancel := context.WithDeadline(ctx, late.Add(-min(s.leaves(), max(0, time.Until(late)*2/3))))
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

// leaves is how much of Close's time is for the stages behind this one.
func (s Stage) leaves() time.Duration {
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
	o.steps[s] = nil
	return steps
}
