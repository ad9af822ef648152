package agent

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/internal/api"
)

// stepEvery is how often progress is told at most.
const stepEvery = 500 * time.Millisecond

// progress tells how far the command is.
type progress struct {
	door    *door
	steps   steps
	attempt int
	now     func() time.Time
	log     *logbook
	measure func()       // whatever else is to be looked at as often
	next    api.Progress // that the gateway does not have
	some    bool
	stopped bool // the gateway does not want to hear it
}

// watch tells it while the command runs.
func (p *progress) watch(ctx context.Context) {
	t := time.NewTicker(stepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			p.measure()
			p.look(ctx, p.steps.read)
		}
	}
}

// finish tells what has come since, when the command has ended.
func (p *progress) finish(ctx context.Context) { p.look(ctx, p.steps.rest) }

func (p *progress) look(ctx context.Context, read func() (api.Progress, bool)) {
	step, found := read()
	if found {
		merge(&p.next, step)
		p.some = true
	}
	if !p.some || p.stopped {
		return
	}
	line, err := stepLine(p.next, p.attempt, p.now())
	if err == nil {
		err = p.door.insist(ctx, said{"/progress", linesType, line}, nil)
	}
	if err == nil {
		p.next, p.some = api.Progress{}, false
	} else if ctx.Err() == nil {
		p.stopped = true
		p.log.note("%v", fmt.Errorf("progress cannot be told any more: %w", err))
	}
}
