package load

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

// extraTime is the extra time of a run, so that a server that hangs ends the measurement. A server
// that is slower than the rate of its requests needs some of it.
const extraTime = 2 * time.Minute

// Generator is a set of open connections to one server.
type Generator struct {
	task  Task
	conns []*conn
}

// Open connects, and posts until the server is warm.
func Open(ctx context.Context, t Task) (*Generator, error) {
	g := &Generator{task: t}
	events := task.Events()
	bodies, err := readBodies(t)
	if err != nil {
		return nil, err
	}
	for i := range t.Connections {
		c, err := dial(ctx, t, i, events, bodies)
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.conns = append(g.conns, c)
	}
	if err := g.postAll(ctx, t.Warm); err != nil {
		return nil, errors.Join(fmt.Errorf("warm up: %w", err), g.Close())
	}
	for _, c := range g.conns {
		c.took, c.late = c.took[:0], c.late[:0]
	}
	return g, nil
}

// Close closes the connections.
func (g *Generator) Close() error {
	var failed []error
	for _, c := range g.conns {
		failed = append(failed, c.Close())
	}
	return errors.Join(failed...)
}

// Measure posts and measures.
func (g *Generator) Measure(ctx context.Context) (Result, error) {
	var m task.Meter
	if err := m.Start(task.Task{}); err != nil {
		return Result{}, err
	}
	if err := g.postAll(ctx, g.task.Last); err != nil {
		return Result{}, err
	}
	spent, err := m.Stop(task.Task{})
	if err != nil {
		return Result{}, err
	}
	r := Result{Wall: spent.Wall, CPU: spent.CPU}
	var took, late []time.Duration
	for _, c := range g.conns {
		r.Answered += c.sent * g.task.events()
		took, late = append(took, c.took...), append(late, c.late...)
	}
	slices.Sort(took)
	slices.Sort(late)
	r.Requests, r.Events = len(took), len(took)*g.task.events()
	r.P50, r.P99, r.Max = task.Quantile(took, 0.5), task.Quantile(took, 0.99), task.Quantile(took, 1)
	r.Late = task.Quantile(late, 0.99)
	return r, nil
}

// postAll lets all connections post for a while. The first error ends all.
func (g *Generator) postAll(ctx context.Context, last time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := time.Now()
	var all sync.WaitGroup
	for i, c := range g.conns {
		if err := c.SetDeadline(begun.Add(last + extraTime)); err != nil {
			return err
		}
		cut := context.AfterFunc(ctx, func() { _ = c.SetDeadline(begun) })
		all.Go(func() {
			defer cut()
			if err := g.one(i, c, begun, begun.Add(last)); err != nil {
				cancel(fmt.Errorf("post on connection %d: %w", i, err))
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (g *Generator) one(number int, c *conn, begun, until time.Time) error {
	if g.task.Rate == 0 {
		return c.postNonStop(until)
	}
	every := time.Duration(float64(time.Second) / g.task.Rate)
	first := begun.Add(time.Duration(number) * every)
	return c.keepPace(first, until, time.Duration(len(g.conns))*every)
}
