package remote

import (
	"context"
	"fmt"
	"sync"

	"tidemill.dev/internal/tail"
)

// TailOptions say what to read.
type TailOptions struct {
	Stream string
	From   string // as the gateway takes it; empty is the end
	Where  string // CloudEvents SQL; empty is every event
	ToEnd  bool   // end where the stream ends now
	Limit  int    // end after so many; 0 is no limit
	// Away is called once when the gateway does not answer any more, and once
	// with nil when it is back.
	Away func(error)
}

// Tail reads a stream through the gateway. When it is cut off it comes back and
// goes on behind the last event that came whole. One goroutine calls Next.
type Tail struct {
	g    *Gateway
	o    TailOptions
	news *queue

	ctx     context.Context // of the connections; ended by Close
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Tail begins to read. A stream that is not there, that the caller may not read,
// or that the gateway cannot open within some seconds, is told now.
func (g *Gateway) Tail(ctx context.Context, o TailOptions) (*Tail, error) {
	t := &Tail{g: g, o: o, news: newQueue()}
	t.ctx, t.stop = context.WithCancel(context.Background())
	l := &line{t: t, hangUp: func() {}}
	calling := context.AfterFunc(ctx, t.stop)
	err := l.open()
	if !calling() {
		err = context.Cause(ctx)
	}
	if err != nil {
		t.stop()
		l.hangUp()
		return nil, fmt.Errorf("tail stream %s: %w", o.Stream, err)
	}
	t.running.Go(func() { t.news.end(l.run()) })
	return t, nil
}

// Close hangs up.
func (t *Tail) Close() {
	t.stop()
	t.running.Wait()
}

// Next waits for events and returns those that have arrived; none if the
// gateway has gone or come back meanwhile. The error is io.EOF behind the last,
// where there is one.
func (t *Tail) Next(ctx context.Context) ([]tail.Event, error) {
	all, err := t.news.take(ctx)
	if err != nil {
		return nil, err
	}
	var events []tail.Event
	for i := range all {
		switch n := &all[i]; {
		case !n.turn:
			events = append(events, n.event)
		case t.o.Away != nil:
			t.o.Away(n.away)
		}
	}
	return events, nil
}
