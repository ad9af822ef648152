package web

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/internal/tail"
	"tidemill.dev/triggers/match"
)

// follower sends what a reader reads to one caller.
type follower struct {
	reader *tail.Reader
	viewer *viewer
	where  *match.Filter // nil is every event
	limit  int           // of events; 0 is none
	alive  time.Duration // between two signs of life
	events prometheus.Counter
	text   *eventText
	out    *patientWriter

	at   tail.Place // behind what was read
	told tail.Place // what the caller goes on from, or a little before it
	sent int        // events
	last time.Time  // something was sent
}

// run sends until the end, if there is to be one, or until something ends it.
func (f *follower) run(ctx context.Context) error {
	f.at = f.reader.Place()
	f.told = slices.Clone(f.at)
	f.text.begin(f.at)
	if err := f.flush(ctx); err != nil {
		return err
	}
	for {
		batch, err := f.reader.Next(ctx)
		if err == io.EOF {
			return f.end(ctx)
		}
		if err == nil {
			err = f.viewer.again(ctx)
		}
		if err != nil {
			return err
		}
		done, err := f.send(ctx, batch)
		if err != nil {
			return err
		}
		if done {
			return f.end(ctx)
		}
		f.at = f.reader.Place()
		if time.Since(f.last) >= f.alive {
			f.text.alive(f.at, !slices.Equal(f.at, f.told))
			f.told = slices.Clone(f.at)
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// send sends what the caller may see and wants of a batch, and is done if that reaches
// the limit.
func (f *follower) send(ctx context.Context, batch []tail.Event) (done bool, err error) {
	before := f.sent
	defer func() { f.events.Add(float64(f.sent - before)) }()
	for i := range batch {
		e := &batch[i]
		f.at.Set(e.Partition, e.Next)
		if !f.viewer.may(e) || !f.wants(e) {
			continue
		}
		f.text.event(e, f.at)
		if f.sent++; f.sent == f.limit {
			return true, nil
		}
		if i == len(batch)-1 {
			f.told = slices.Clone(f.at)
		}
		if f.text.b.Len() >= tailPortion {
			if err := f.flush(ctx); err != nil {
				return false, err
			}
		}
	}
	return false, f.flush(ctx)
}

// wants judges an event. What is none matches no condition and is no reason for
// silence either.
func (f *follower) wants(e *tail.Event) bool {
	return f.where == nil || e.Err != nil || f.where.Match(&e.View)
}

// end tells the caller that this was all.
func (f *follower) end(ctx context.Context) error {
	f.text.end(f.at)
	return f.flush(ctx)
}

// flush sends what text there is.
func (f *follower) flush(ctx context.Context) error {
	b := f.text.taken()
	if len(b) == 0 {
		return nil
	}
	f.last = time.Now()
	return f.out.write(ctx, b)
}
