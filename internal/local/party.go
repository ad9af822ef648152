package local

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"tidemill.dev/internal/agent"
	"tidemill.dev/internal/runs"
)

// together does an attempt with all that work on it, each of them an agent with
// a child of its own, that meet at ports of this machine. The first worker's
// error is the attempt's.
func (l *Launcher) together(ctx context.Context, a runs.Attempt) error {
	workers, servers := max(1, a.Plan.Workers), 0
	if a.Plan.Servers != nil {
		servers = a.Plan.Servers.Count
	}
	d := &deal{cards: l.cards, workers: workers, dealt: make(chan struct{})}
	defer d.release()
	if workers+servers == 1 {
		return agent.Run(ctx, l.options(a, &gear{l: l, deal: d}))
	}
	at, err := agent.Places(workers + servers)
	if err != nil {
		return err
	}
	errs := make([]error, workers+servers)
	var all sync.WaitGroup
	for i := range errs {
		o := l.options(a, &gear{l: l, deal: d, index: i, none: i >= workers})
		o.Workers, o.Servers, o.Part, o.Index = at[:workers], at[workers:], agent.Worker, i
		if i >= workers {
			o.Part, o.Index = agent.Server, i-workers
		}
		if i > 0 {
			o.Work += fmt.Sprintf("-%s%d", o.Part, o.Index)
		}
		all.Go(func() { errs[i] = agent.Run(ctx, o) })
	}
	all.Wait()
	if errs[0] == nil {
		return errors.Join(errs[1:]...)
	}
	return errs[0]
}

// deal takes the cards of an attempt and hands each worker its own. All are taken
// at once: of two attempts that each had half of what they need, both would wait
// for ever.
type deal struct {
	cards   *cards
	workers int

	dealt chan struct{} // closed when it has been
	all   []card
	err   error
}

// take is a worker's share. The first worker takes for all.
func (d *deal) take(ctx context.Context, index, each int) ([]card, error) {
	if index == 0 {
		d.all, d.err = d.cards.take(ctx, each*d.workers)
		close(d.dealt)
	}
	select {
	case <-d.dealt:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for GPUs: %w", context.Cause(ctx))
	}
	if d.err != nil {
		return nil, d.err
	}
	return d.all[index*each : (index+1)*each], nil
}

// release gives back what was taken, when all have ended.
func (d *deal) release() { d.cards.give(d.all) }
