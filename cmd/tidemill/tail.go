package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/platform"
)

func tailCommand() command {
	return command{
		name:    "tail",
		args:    "STREAM",
		summary: "show a stream's events as they arrive",
		about: `It follows the stream until Ctrl-C, -n or --no-follow ends it, and leaves no
trace: nobody's offsets move. What arrives together is shown in the order of time;
across partitions no other order is promised.

--from is beginning, end, an offset (of each partition), a time ago such as -1h or
-2d, or a time as in RFC 3339. --where is CloudEvents SQL; an event that lacks an
attribute it names does not match. Records that are no events are shown as such,
with -o json on standard error.`,
		examples: []example{
			{"tidemill tail events", "what arrives from now on"},
			{"tidemill tail events --from beginning --no-follow", "what is there, and no more"},
			{`tidemill tail events --from -1h --where "type = 'new-data' AND subject LIKE 'bot-%'"`, "an hour back, filtered"},
			{"tidemill tail dead-letters --from beginning -n 1 -o json", "the first dead letter, as JSON"},
		},
		make: func() program { return &tail{from: "end", output: "text"} },
	}
}

type tail struct {
	connection
	from, where, output string
	limit               int
	noFollow            bool

	start broker.Start
	match filter
}

func (t *tail) flags(f *flagSet) {
	f.text(&t.from, "from", "", "WHERE", "beginning, end, OFFSET, -1h or a time")
	f.text(&t.where, "where", "w", "CESQL", "show only events that match")
	f.number(&t.limit, "count", "n", "COUNT", "end after so many events; 0 is no limit")
	f.yes(&t.noFollow, "no-follow", "end where the stream ends now")
	f.text(&t.output, "output", "o", "FORMAT", "text, or json: a structured CloudEvent a line")
	t.connection.flags(f)
}

func (t *tail) accept(positional []string) (err error) {
	if err := checkOutput(t.output); err != nil {
		return err
	}
	if t.limit < 0 {
		return usagef("-n %d: give 1 or more", t.limit)
	}
	if t.start, err = parseFrom(t.from, time.Now()); err != nil {
		return err
	}
	if t.match, err = parseFilter(t.where); err != nil {
		return err
	}
	return wants(positional, "STREAM")
}

func (t *tail) run(ctx context.Context, s *session, positional []string) (err error) {
	pf, err := t.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePlatform(ctx, pf)) }()
	r, err := t.reader(ctx, pf, positional[0])
	if err != nil {
		return err
	}
	t.sayHow(s, positional[0])
	show := t.shower(s)
	seen, shown := 0, 0
	away := &absence{out: s.stderr, ping: pf.Broker().Ping, looked: time.Now()}
	for {
		batch, err := r.gather(ctx)
		if err != nil {
			return t.interrupted(ctx, err)
		}
		for _, e := range batch {
			if ctx.Err() != nil { // what is fetched already may fill many screens
				return t.interrupted(ctx, nil)
			}
			seen++
			if !t.shows(&e) {
				continue
			}
			if err := show(&e); err != nil {
				return err
			}
			if shown++; shown == t.limit {
				return nil
			}
		}
		if len(batch) > 0 {
			continue
		}
		if r.atEnd() {
			if shown == 0 {
				t.sayNothing(s, positional[0], seen)
			}
			return nil
		}
		away.look(ctx)
	}
}

// interrupted tells the user's Ctrl-C, which is how following ends, from
// trouble. Whoever asked for all that is there has not got it.
func (t *tail) interrupted(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && t.noFollow:
		return errors.New("tail: interrupted before the stream's end")
	case ctx.Err() != nil:
		return nil
	}
	return fmt.Errorf("tail: %w", err)
}

// shows judges an event. What is no event matches no filter and is no reason
// for silence either.
func (t *tail) shows(e *tailed) bool { return e.Err != nil || t.match(&e.View) }

// tailed is a record with memory of its own.
type tailed struct {
	broker.Incoming
	stream    string
	partition int32
}

// tailReader reads a stream to its end, or for ever.
type tailReader struct {
	consumer *broker.Consumer
	ends     map[int32]int64 // by partition; nil: for ever
}

func (t *tail) reader(ctx context.Context, pf *platform.Platform, stream string) (*tailReader, error) {
	r := &tailReader{}
	var err error
	if t.noFollow {
		ends, err := pf.Broker().Ends(ctx, stream)
		if err != nil {
			return nil, err
		}
		r.ends = map[int32]int64{}
		for _, end := range ends {
			r.ends[end.Partition] = end.Offset
		}
	}
	r.consumer, err = pf.Consumer(ctx, broker.ConsumerOptions{Streams: []string{stream}, Start: t.start})
	return r, err
}

const (
	gatherEvents = 4096
	gatherBytes  = 16 << 20
	gatherPause  = 20 * time.Millisecond  // nothing more comes at once
	lookAtEnd    = 100 * time.Millisecond // how often a reader to the end looks whether it is there
	lookForKafka = 5 * time.Second        // how often one on which nothing comes looks whether Kafka is
)

// gather returns what has arrived, in the order of time: a stream's partitions
// are fetched one after the other, and people read by the clock. It is empty
// when nothing has come for a while: the end may have been reached, or Kafka be
// away.
func (r *tailReader) gather(ctx context.Context) ([]tailed, error) {
	first := lookForKafka
	if r.ends != nil {
		first = lookAtEnd
		if r.atEnd() {
			first = gatherPause
		}
	}
	var batch []tailed
	bytes := 0
	for pause := first; len(batch) < gatherEvents && bytes < gatherBytes; pause = gatherPause {
		d, err := r.poll(ctx, pause)
		if err != nil && len(batch) == 0 {
			return nil, err
		}
		if d == nil {
			break // the next call meets the error again
		}
		had := len(batch)
		batch = r.keep(batch, d)
		for _, e := range batch[had:] {
			bytes += len(e.Data)
		}
		d.Done()
	}
	slices.SortStableFunc(batch, func(a, b tailed) int { return a.Time.Compare(b.Time) })
	return batch, nil
}

// poll is nil when the time is up.
func (r *tailReader) poll(ctx context.Context, within time.Duration) (*broker.Delivery, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	d, err := r.consumer.Poll(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil && !errors.Is(err, broker.ErrClosed) {
		return nil, nil
	}
	return d, err
}

// keep copies a delivery's records, those before the end. A partition that has
// been added since ends where it begins.
func (r *tailReader) keep(batch []tailed, d *broker.Delivery) []tailed {
	for i := range d.Events {
		e := &d.Events[i]
		if r.ends != nil && e.Offset >= r.ends[d.Partition] {
			break
		}
		kept := tailed{stream: d.Stream, partition: d.Partition}
		kept.View, kept.Offset, kept.Time, kept.Err = e.View.Clone(), e.Offset, e.Time, e.Err
		batch = append(batch, kept)
	}
	return batch
}

func (r *tailReader) atEnd() bool {
	if r.ends == nil {
		return false
	}
	for _, at := range r.consumer.Positions() {
		if at.Offset < r.ends[at.Partition] {
			return false
		}
	}
	return true
}
