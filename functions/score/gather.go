package score

import (
	"context"
	"errors"
	"time"

	"tidemill.dev/broker"
)

// mostBytes is how much a batch may carry, and mostEvents how many events where
// the config does not say.
const (
	mostBytes  = 16 << 20
	mostEvents = 8192
)

// gather takes what there is, up to a batch: a single event at once if nothing
// is behind it, and as many as came meanwhile if the batch before took its time.
// It waits only for the first. The batch stays empty if there was something
// else to see to.
func (s *session) gather(ctx context.Context, b *batch) error {
	if err := s.collect(ctx, b); err != nil {
		return err
	}
	for b.events < s.most && b.bytes < mostBytes {
		d, err := s.poll(ctx, b)
		if d == nil {
			return err
		}
		s.take(b, d)
	}
	return nil
}

// poll is the next delivery; none if the batch need not wait for it.
func (s *session) poll(ctx context.Context, b *batch) (*broker.Delivery, error) {
	d, err := s.c.Poll(s.already)
	switch {
	case d != nil:
		return d, nil
	case errors.Is(err, broker.ErrClosed):
		s.closing = true
	case !errors.Is(err, context.Canceled):
		return nil, err
	}
	grows := b.events > 0 && b.events < early && s.bell.committing()
	if !b.empty() && !grows || s.closing {
		return nil, nil
	}
	return s.wait(ctx, grows)
}

// early is a batch that is large enough to be computed while another is committed.
// A smaller one is done in no time, and would only wait: it grows instead until
// the committer is free, so that no event waits for two commits before its own.
const early = 256

// wait waits for a delivery, for the bell, or for the committer to become free.
func (s *session) wait(ctx context.Context, committer bool) (*broker.Delivery, error) {
	quiet, cancel := context.WithCancel(ctx)
	defer cancel()
	if at, some := s.due(); some {
		quiet, cancel = context.WithDeadline(quiet, at)
		defer cancel()
	}
	defer s.bell.listen(cancel, committer)()
	d, err := s.c.Poll(quiet)
	switch {
	case d != nil:
		return d, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case quiet.Err() != nil, errors.Is(err, broker.ErrClosed): // which the next poll says again
		return nil, nil
	}
	return nil, err
}

// take adds a delivery's events to the batch.
func (s *session) take(b *batch, d *broker.Delivery) {
	t := s.tenures.of(d)
	if t == nil {
		b.drops = append(b.drops, d)
		return
	}
	s.know(t)
	one := &turn{d: d, tenure: t}
	t.turns = append(t.turns, one)
	b.touch(one)
	b.events += len(d.Events)
	for i := range d.Events {
		e := &d.Events[i]
		b.bytes += len(e.Data)
		s.choose(b, item{v: &e.View, offset: e.Offset, logged: e.Time.UnixMilli(), turn: one})
	}
	if n := len(d.Events); n > 0 && t.found != nil && d.Events[n-1].Offset >= t.found.last {
		t.found = nil
	}
}

// touch notes that the batch has something of a tenure.
func (b *batch) touch(t *turn) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	for i := range b.parts {
		if p := &b.parts[i]; p.tenure == t.tenure {
			if p.turn.d == nil {
				p.turn = t
			}
			return
		}
	}
	b.parts = append(b.parts, part{tenure: t.tenure, turn: t})
}

// know begins to keep books on a tenure, and ends those of the tenures that have
// ended. What versions a partition has been scored by outlives an aborted
// transaction, as far as it was committed.
func (s *session) know(t *tenure) {
	if t.known {
		return
	}
	t.known = true
	if t.before != nil {
		committed := s.committed.Load()
		for model, v := range t.before.versions {
			if v.batch <= committed {
				t.versions[model] = v
			}
		}
		t.before = nil
	}
	s.active = append(s.active, t)
}
