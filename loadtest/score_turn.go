package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev/broker"
)

// scorerProcess is a running scorer and its output stream.
type scorerProcess struct {
	*childServer
	out string
}

// startScorer starts a scorer that reads the stream from its beginning.
func (w *scoreBench) startScorer(ctx context.Context, atLeastOnce bool, what string) (*scorerProcess, error) {
	w.rounds++
	return w.startTask(ctx, w.newTask(atLeastOnce, what))
}

// startParts starts a scorer, an observer, or a process with both.
func (w *scoreBench) startParts(ctx context.Context, parts string) (*scorerProcess, error) {
	w.rounds++
	t := w.newTask(false, w.Name)
	t.Parts = parts
	return w.startTask(ctx, t)
}

func (w *scoreBench) startTask(ctx context.Context, t scorerTask) (*scorerProcess, error) {
	arg, err := w.argument(t)
	if err != nil {
		return nil, err
	}
	s, err := startServer(ctx, []string{w.self, roleScorer}, arg)
	if err != nil {
		return nil, fmt.Errorf("start the scorer: %w", err)
	}
	return &scorerProcess{s, outStream(w.rounds)}, nil
}

// newTask returns the task of this round's scorer.
func (w *scoreBench) newTask(atLeastOnce bool, what string) scorerTask {
	return scorerTask{Addresses: w.addresses(), Config: w.scorerConfig(w.rounds, atLeastOnce), Profile: w.profile, What: what, Cores: w.Cores}
}

// argument returns a task as JSON.
func (w *scoreBench) argument(t scorerTask) (_ string, err error) {
	if t.Memory, err = bytesIn(w.Memory); err != nil {
		return "", err
	}
	arg, err := json.Marshal(t)
	return string(arg), err
}

// waitScored waits until n events have been scored.
func (s *scorerProcess) waitScored(n int) (int, error) {
	r, err := s.result(fmt.Sprintf("%s %d", sayUntil, n))
	return r.Records, err
}

// runScorers runs a turn of each delivery mode.
func (c *comparison) runScorers(ctx context.Context) error {
	for _, turn := range []struct {
		leastOnce bool
		what      string
		into      *turns
	}{{false, c.Name + "-exactly-once", &c.once}, {true, c.Name + "-at-least-once", &c.least}} {
		m, err := c.runScorer(ctx, turn.leastOnce, turn.what)
		if err != nil {
			return fmt.Errorf("%s: %w", turn.what, err)
		}
		*turn.into = append(*turn.into, m)
	}
	return nil
}

// runScorer runs a scorer on the stream, and audits the outputs.
func (c *comparison) runScorer(ctx context.Context, atLeastOnce bool, what string) (m measuredTurn, err error) {
	s, err := c.startScorer(ctx, atLeastOnce, what)
	if err != nil {
		return m, err
	}
	m, err = c.turn(s)
	if err := errors.Join(err, s.stop()); err != nil {
		return m, err
	}
	if c.data == 0 {
		if c.data, err = c.outputSize(ctx, s.out); err != nil {
			return m, err
		}
	}
	a, err := c.newAudit()
	if err == nil {
		err = a.checkStream(ctx, s.out)
	}
	c.count(a)
	return m, errors.Join(err, c.st.remove(ctx, s.out))
}

func (c *comparison) turn(s *scorerProcess) (m measuredTurn, err error) {
	if _, err = s.waitScored(c.Warm); err != nil {
		return m, err
	}
	if err = errors.Join(c.server.startMeasuring(), s.startMeasuring()); err != nil {
		return m, err
	}
	if _, err = s.waitScored(c.Warm + c.Events); err != nil {
		return m, err
	}
	m.Result, err = s.stopMeasuring()
	broker, failed := c.server.stopMeasuring()
	m.broker, m.whole = broker.CPU, m.Records
	if err := errors.Join(err, failed); err != nil {
		return m, err
	}
	_, err = s.waitScored(c.places.count()) // includes the events that waited for their models
	return m, err
}

func (c *comparison) count(a *outputAudit) {
	if a == nil {
		return
	}
	c.audit.outputs += a.counts.outputs
	c.audit.checked += a.counts.checked
	c.audit.lost += a.counts.lost
	c.audit.twice += a.counts.twice
	c.audit.wrong += a.counts.wrong
	if c.first == nil {
		c.first = a.first
	}
}

// outputSize returns the size of a scored event's data in bytes.
func (w *scoreBench) outputSize(ctx context.Context, stream string) (int, error) {
	size, n := 0, 0
	for p := range int32(partitions) {
		_, err := w.st.b.Read(ctx, broker.Position{Stream: stream, Partition: p}, 64<<10, func(e *broker.Incoming) bool {
			size, n = size+len(e.Data), n+1
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("stream %s has no outputs", stream)
	}
	return size / n, nil
}

// bytesIn parses a size in the syntax of the command line.
func bytesIn(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, unit := int64(0), ""
	if _, err := fmt.Sscanf(text, "%d%s", &n, &unit); err != nil || n < 1 || unit != "GiB" {
		return 0, fmt.Errorf("memory %q: say it as 1GiB", text)
	}
	return n << 30, nil
}
