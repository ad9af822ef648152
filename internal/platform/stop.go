package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Stage is a step of the stop order, which is written down here and nowhere
// else: door closed → consumers drained → producers flushed → offsets committed
// → group left → clients closed.
//
// Draining, committing and leaving are one stage, because a consumer does them
// in one go: an event counts as drained only when what was made of it has been
// acknowledged. So a handler's own producer is flushed while its consumer
// drains, and the producers' stage only ends them.
type Stage int

// The stages, in their order.
const (
	Doors     Stage = iota // nothing new comes in
	Consumers              // drained, committed, out of their group
	Producers              // flushed
	clients                // no connection is left
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

// Close stops everything in the stop order, each step as long as the context
// allows. A step that fails does not keep those behind it from their turn.
// A second Close finds nothing left to do.
func (p *Platform) Close(ctx context.Context) error {
	var failed []error
	for stage := range stages {
		for _, step := range slices.Backward(p.stops.take(stage)) {
			if err := step.stop(ctx); err != nil {
				failed = append(failed, fmt.Errorf("stop %s: %w", step.what, err))
			}
		}
	}
	return errors.Join(failed...)
}

func (o *stopOrder) take(s Stage) []stopStep {
	o.mu.Lock()
	defer o.mu.Unlock()
	steps := o.steps[s]
	o.steps[s] = nil
	return steps
}
