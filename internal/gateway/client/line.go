package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/broker/retry"
)

const (
	// maxSilence is how long a connection may receive nothing. It is three intervals of the
	// gateway's keep-alive comments.
	maxSilence = 45 * time.Second

	// longestAsked limits the pause that a gateway may request before a tail reconnects.
	longestAsked = 30 * time.Second

	eventStreamType = "text/event-stream"
	eventEnd        = "end"
)

// tailLine is the connection of a tail. It reconnects after a break.
type tailLine struct {
	t      *Tail
	stream *eventStream
	hangUp func() // ends an open connection

	lastID string
	seen   int
	wait   backoff
	away   bool // whether the caller knows that the gateway is away
}

// temporaryError is a temporary failure, such as a restart of the gateway.
type temporaryError struct {
	error
	after time.Duration // pause that the gateway requests
}

// Unwrap returns the failure.
func (e *temporaryError) Unwrap() error { return e.error }

// openFirst makes the first connection. The attempts are limited, because the address may be wrong.
func (l *tailLine) openFirst() error {
	p := l.t.g.reading()
	for {
		err := l.connect(max(time.Until(p.until), time.Second))
		var away *temporaryError
		if !errors.As(err, &away) {
			p.g.trouble.Store(nil)
			return err
		}
		l.hangUp()
		if ended := p.waitBeforeRetry(l.t.ctx, away.after, away.error); ended != nil {
			return ended
		}
	}
}

// readUntilEnd reads until the end or a permanent error, which it returns.
func (l *tailLine) readUntilEnd() error {
	defer func() { l.hangUp() }()
	var err error // error of the last connection
	for {
		if err == nil {
			if err = l.readEvents(); errors.Is(err, errEnd) {
				return io.EOF
			}
			l.wait = backoff{}
		} else if isTemporaryError(err) {
			l.reportAvailability(err)
		}
		l.hangUp()
		if l.t.ctx.Err() != nil {
			return broker.ErrClosed
		}
		if !isTemporaryError(err) {
			return fmt.Errorf("tail stream %s: %w", l.t.o.Stream, err)
		}
		l.waitBeforeCall(err)
		if err = l.connect(maxSilence); err == nil {
			l.reportAvailability(nil)
		}
	}
}

func isTemporaryError(err error) bool {
	var away *temporaryError
	return errors.As(err, &away)
}

// reportAvailability makes Next report once that the gateway is away, and once that it is back. If
// the first call after a break succeeds, the break is not reported.
func (l *tailLine) reportAvailability(err error) {
	if gone := err != nil; gone != l.away {
		l.away = gone
		l.t.news.put(l.t.ctx, queueEntry{away: err, turn: true})
	}
}

// waitBeforeCall waits before a new call: shortly after a break, longer while the gateway does not
// answer.
func (l *tailLine) waitBeforeCall(err error) {
	d := l.wait.next(0)
	var away *temporaryError
	if errors.As(err, &away) && away.after > 0 {
		asked := min(away.after, longestAsked)
		d = max(d, asked+rand.N(asked/2+1))
	}
	_ = retry.Sleep(l.t.ctx, d)
}

// connect requests the events after the last complete event. The parameter within limits the time
// until the answer.
func (l *tailLine) connect(within time.Duration) error {
	ctx, cancel := context.WithCancel(l.t.ctx)
	quiet := time.AfterFunc(within, cancel)
	l.hangUp = func() { quiet.Stop(); cancel() }
	res, err := l.t.g.sendOnce(ctx, l.request())
	if err != nil {
		switch {
		case isPermanent(err):
			return err
		case ctx.Err() != nil && l.t.ctx.Err() == nil:
			err = errSilent
		}
		return &temporaryError{error: err}
	}
	l.hangUp = func() { quiet.Stop(); cancel(); _ = res.Body.Close() }
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode != http.StatusOK || media != eventStreamType {
		return l.refused(res)
	}
	quiet.Reset(maxSilence)
	l.stream = newEventStream(&watchedBody{res.Body, quiet}, l.lastID)
	return nil
}

func (l *tailLine) request() request {
	o := l.t.o
	q := url.Values{"follow": {strconv.FormatBool(!o.ToEnd)}}
	if o.From != "" {
		q.Set("from", o.From)
	}
	if o.Where != "" {
		q.Set("where", o.Where)
	}
	if o.Limit > 0 {
		q.Set("limit", strconv.Itoa(o.Limit-l.seen))
	}
	h := http.Header{"Accept": {eventStreamType}, "Cache-Control": {"no-store"}}
	if l.lastID != "" {
		h.Set("Last-Event-ID", l.lastID)
	}
	return request{method: http.MethodGet, path: []string{"api", "v1", "streams", o.Stream, "events"}, query: q, header: h}
}

func (l *tailLine) refused(res *http.Response) error {
	body, err := readAll(res.Body)
	if err != nil {
		return &temporaryError{error: err}
	}
	a := wholeAnswer{res.StatusCode, res.Header, body}
	err = l.t.g.failureError(a)
	if after, ok := isTemporary(a); ok {
		return &temporaryError{err, after}
	}
	return err
}

// watchedBody is a body whose connection is closed if nothing arrives for a long time.
type watchedBody struct {
	io.Reader
	quiet *time.Timer
}

// Read reads from the body and restarts the timer.
func (a *watchedBody) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	a.quiet.Reset(maxSilence)
	return n, err
}

var errEnd = errors.New("the stream has ended")

// readEvents passes on events until the connection breaks or the stream ends.
func (l *tailLine) readEvents() error {
	for {
		m, err := l.stream.nextMessage()
		l.lastID = l.stream.lastID
		if errors.Is(err, errTooLong) {
			return err
		}
		if err != nil {
			return &temporaryError{err, l.stream.retry}
		}
		if m.event == eventEnd {
			return errEnd
		}
		if m.event != "" && m.event != "message" {
			continue // event type of a later version
		}
		l.t.news.put(l.t.ctx, queueEntry{event: l.decodeEvent(m.data), size: len(m.data)})
		if l.seen++; l.seen == l.t.o.Limit {
			return errEnd
		}
	}
}

// unknownValue is the value of a missing partition or offset.
const unknownValue = -1

// decodeEvent reads an event from the gateway's message. An unreadable message becomes a bad
// record, with the position if the message has one, so that the reader still gets the later events.
func (l *tailLine) decodeEvent(data []byte) follow.Event {
	told := api.Tailed{Partition: unknownValue, Offset: unknownValue}
	err := json.Unmarshal(data, &told)
	e := follow.Event{Stream: l.t.o.Stream, Partition: told.Partition, Offset: told.Offset, Received: told.Received}
	if e.Received.IsZero() {
		e.Received = time.Now()
	}
	switch {
	case err != nil:
		e.Err = fmt.Errorf("the gateway sent an unreadable event: %w", err)
		e.View = broker.View{Data: bytes.Clone(data)}
		return e
	case told.Error == "":
		e.Err = broker.UnmarshalStructured(told.Event, &e.View)
	default:
		e.Err = errors.New(told.Error)
	}
	if e.Err != nil {
		e.View = broker.View{Key: told.Key, Data: told.Data}
	}
	return e
}

// The limits of events that wait for Next. If a reader pauses, for example in a pager, the gateway
// must wait, so that the stream does not fill the memory.
const (
	waitingEvents = 1024
	waitingBytes  = 16 << 20 // a single event may be larger
)

// eventQueue holds the received events that Next has not returned. One goroutine calls put, and one
// calls take.
type eventQueue struct {
	came, room chan struct{} // signals for take, and for put

	mu    sync.Mutex
	all   []queueEntry
	bytes int
	err   error // reason why the queue is closed
}

// queueEntry is an event, or a change of the gateway's availability.
type queueEntry struct {
	event follow.Event
	size  int // bytes of the event's message
	away  error
	turn  bool // whether the availability has changed: away, or back if the field away is nil
}

func newQueue() *eventQueue {
	return &eventQueue{came: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put waits for room, until the context ends.
func (q *eventQueue) put(ctx context.Context, n queueEntry) {
	for !q.add(n) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return
		}
	}
	wake(q.came)
}

func (q *eventQueue) add(n queueEntry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) > 0 && (len(q.all) == waitingEvents || q.bytes+n.size > waitingBytes) {
		return false
	}
	q.all, q.bytes = append(q.all, n), q.bytes+n.size
	return true
}

// end closes the queue with an error.
func (q *eventQueue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.came)
}

// take waits for events and returns all that have arrived. After the last event, it returns the
// error of the queue.
func (q *eventQueue) take(ctx context.Context) ([]queueEntry, error) {
	for {
		if all, err := q.remove(); len(all) > 0 || err != nil {
			return all, err
		}
		select {
		case <-q.came:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (q *eventQueue) remove() ([]queueEntry, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) == 0 {
		return nil, q.err
	}
	all := q.all
	q.all, q.bytes = nil, 0
	wake(q.room)
	return all, nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is pending
	}
}
