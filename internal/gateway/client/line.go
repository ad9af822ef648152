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
	// silence is how long a connection may stay silent: three intervals of the gateway's keep-alive
	// comments.
	silence = 45 * time.Second

	// longestAsked limits the pause that a gateway may request before a tail reconnects.
	longestAsked = 30 * time.Second

	eventStreamType = "text/event-stream"
	eventEnd        = "end"
)

// line is the connection of a tail. It reconnects after a break.
type line struct {
	t      *Tail
	stream *eventStream
	hangUp func() // ends the connection, if there is one

	lastID string
	seen   int
	wait   backoff
	away   bool // whether the caller knows that the gateway is away
}

// temporaryError is a temporary failure, such as a restart of the gateway.
type temporaryError struct {
	error
	after time.Duration // pause that the gateway asks for
}

// Unwrap returns the failure.
func (e *temporaryError) Unwrap() error { return e.error }

// open makes the first connection. It does not try for ever, because the address may be wrong.
func (l *line) open() error {
	p := l.t.g.reading()
	for {
		err := l.connect(max(time.Until(p.until), time.Second))
		var away *temporaryError
		if !errors.As(err, &away) {
			p.g.trouble.Store(nil)
			return err
		}
		l.hangUp()
		if ended := p.pause(l.t.ctx, away.after, away.error); ended != nil {
			return ended
		}
	}
}

// run reads until the end or a permanent error, which it returns.
func (l *line) run() error {
	defer func() { l.hangUp() }()
	var err error // error of the last connection
	for {
		if err == nil {
			if err = l.read(); errors.Is(err, errEnd) {
				return io.EOF
			}
			l.wait = backoff{}
		} else if isTemporaryError(err) {
			l.tell(err)
		}
		l.hangUp()
		if l.t.ctx.Err() != nil {
			return broker.ErrClosed
		}
		if !isTemporaryError(err) {
			return fmt.Errorf("tail stream %s: %w", l.t.o.Stream, err)
		}
		l.pause(err)
		if err = l.connect(silence); err == nil {
			l.tell(nil)
		}
	}
}

func isTemporaryError(err error) bool {
	var away *temporaryError
	return errors.As(err, &away)
}

// tell makes Next report once that the gateway is away, and once that it is back. A break is not
// reported if the next call succeeds.
func (l *line) tell(err error) {
	if gone := err != nil; gone != l.away {
		l.away = gone
		l.t.news.put(l.t.ctx, news{away: err, turn: true})
	}
}

// pause waits before a new call: shortly after a break, longer while the gateway does not answer.
func (l *line) pause(err error) {
	d := l.wait.next(0)
	var away *temporaryError
	if errors.As(err, &away) && away.after > 0 {
		asked := min(away.after, longestAsked)
		d = max(d, asked+rand.N(asked/2+1))
	}
	_ = retry.Sleep(l.t.ctx, d)
}

// connect asks for the events after the last complete one, and waits at most within for the answer.
func (l *line) connect(within time.Duration) error {
	ctx, cancel := context.WithCancel(l.t.ctx)
	quiet := time.AfterFunc(within, cancel)
	l.hangUp = func() { quiet.Stop(); cancel() }
	res, err := l.t.g.do(ctx, l.request())
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
	quiet.Reset(silence)
	l.stream = newEventStream(&alive{res.Body, quiet}, l.lastID)
	return nil
}

func (l *line) request() request {
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

func (l *line) refused(res *http.Response) error {
	body, err := readAll(res.Body)
	if err != nil {
		return &temporaryError{error: err}
	}
	a := answer{res.StatusCode, res.Header, body}
	err = l.t.g.fault(a)
	if after, ok := isTemporary(a); ok {
		return &temporaryError{err, after}
	}
	return err
}

// alive is a body whose connection ends after a long silence.
type alive struct {
	io.Reader
	quiet *time.Timer
}

// Read reads and resets the timer of the silence.
func (a *alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	a.quiet.Reset(silence)
	return n, err
}

var errEnd = errors.New("the stream has ended")

// read passes on events until the connection breaks or the stream ends.
func (l *line) read() error {
	for {
		m, err := l.stream.next()
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
		l.t.news.put(l.t.ctx, news{event: l.decode(m.data), size: len(m.data)})
		if l.seen++; l.seen == l.t.o.Limit {
			return errEnd
		}
	}
}

// unknown is the value of a missing partition or offset.
const unknown = -1

// decode reads an event from the gateway's message. An unreadable message becomes a bad record,
// with its position if that was read, so that the reader still gets the events after it.
func (l *line) decode(data []byte) follow.Event {
	told := api.Tailed{Partition: unknown, Offset: unknown}
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

// The limits of events that wait for Next. If a reader pauses, as with a pager, the gateway must
// wait, so that the stream does not fill the memory.
const (
	waitingEvents = 1024
	waitingBytes  = 16 << 20 // a single event may be larger
)

// queue holds the received events that Next has not returned. One goroutine puts, one takes.
type queue struct {
	came, room chan struct{} // signals for the taker, and for the putter

	mu    sync.Mutex
	all   []news
	bytes int
	err   error // reason why the queue is closed
}

// news is an event, or a change of the gateway's availability.
type news struct {
	event follow.Event
	size  int // bytes of the event's message
	away  error
	turn  bool // whether the availability has changed: away, or back if the field away is nil
}

func newQueue() *queue {
	return &queue{came: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put waits for room, until the context ends.
func (q *queue) put(ctx context.Context, n news) {
	for !q.add(n) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return
		}
	}
	wake(q.came)
}

func (q *queue) add(n news) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) > 0 && (len(q.all) == waitingEvents || q.bytes+n.size > waitingBytes) {
		return false
	}
	q.all, q.bytes = append(q.all, n), q.bytes+n.size
	return true
}

// end closes the queue with the reason.
func (q *queue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.came)
}

// take waits for events and returns all that have come. It returns the error after the last.
func (q *queue) take(ctx context.Context) ([]news, error) {
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

func (q *queue) remove() ([]news, error) {
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
