package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
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
func (t *Tail) Next(ctx context.Context) ([]follow.Event, error) {
	all, err := t.news.take(ctx)
	if err != nil {
		return nil, err
	}
	var events []follow.Event
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

// maxMessage is more than any event may have: a dead letter of nine megabytes,
// as JSON with its data in base64.
const maxMessage = 32 << 20

var errTooLong = fmt.Errorf("the gateway sends an event of more than %d MiB", maxMessage>>20)

// message is one server-sent event that has data.
type message struct {
	event string // its type; empty is a plain message
	data  []byte // valid until the next
}

// eventStream reads text/event-stream as the HTML standard has it. What it has
// read of an event that was cut off does not count.
type eventStream struct {
	in      *bufio.Reader
	most    int // bytes of an event
	began   bool
	afterCR bool // a line feed that follows belongs to the line before

	line, data []byte
	event      string
	id         string // of the event being read; it stays from event to event

	lastID string        // of the last whole event
	retry  time.Duration // what the server asked for; 0 if nothing
}

func newEventStream(in io.Reader, lastID string) *eventStream {
	return &eventStream{in: bufio.NewReaderSize(in, 64<<10), most: maxMessage, id: lastID, lastID: lastID}
}

// next is the next event that has data. The error is io.EOF, or what io.Reader
// said, when no whole event is left.
func (s *eventStream) next() (message, error) {
	s.data, s.event = s.data[:0], ""
	filled := false
	for {
		line, err := s.readLine()
		if err != nil {
			return message{}, err
		}
		if len(line) > 0 {
			filled = s.field(line) || filled
			continue
		}
		s.lastID = s.id
		if filled {
			return message{s.event, bytes.TrimSuffix(s.data, []byte("\n"))}, nil
		}
		s.event = ""
	}
}

// field takes one line and says whether it was of the data.
func (s *eventStream) field(line []byte) (data bool) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "data":
		s.data = append(append(s.data, value...), '\n')
		return true
	case "event":
		s.event = string(value)
	case "id":
		if bytes.IndexByte(value, 0) < 0 {
			s.id = string(value)
		}
	case "retry":
		if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
			s.retry = time.Duration(ms) * time.Millisecond
		}
	}
	return false // comments too: their name is empty
}

// readLine is a line without its end, which is a line feed, a carriage return or
// both. It never waits for more than it needs: after a carriage return nothing
// may follow for long.
func (s *eventStream) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.more()
		if err != nil {
			return nil, err
		}
		end := lineEnd(part)
		if end >= 0 {
			s.afterCR = part[end] == '\r'
			s.line = append(s.line, part[:end]...)
			_, err = s.in.Discard(end + 1)
		} else {
			s.line = append(s.line, part...)
			_, err = s.in.Discard(len(part))
		}
		switch {
		case err != nil:
			return nil, err
		case len(s.line)+len(s.data) > s.most:
			return nil, errTooLong
		case end >= 0:
			return s.line, nil
		}
	}
}

// lineEnd looks for a carriage return only where the line may still be: most
// senders never write one.
func lineEnd(b []byte) int {
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		b = b[:lf]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// more is what has arrived, at least a byte, past a line feed that belongs to
// the line before and past the byte order mark that the standard allows.
func (s *eventStream) more() ([]byte, error) {
	first, err := s.in.Peek(1)
	if err == nil && s.afterCR && first[0] == '\n' {
		if _, err = s.in.Discard(1); err == nil {
			_, err = s.in.Peek(1)
		}
	}
	if err == nil && !s.began {
		err = s.skipMark()
	}
	if err != nil {
		return nil, err
	}
	s.afterCR = false
	return s.in.Peek(s.in.Buffered())
}

func (s *eventStream) skipMark() error {
	const mark = "\ufeff"
	s.began = true
	if first, err := s.in.Peek(1); err != nil || first[0] != mark[0] {
		return err
	}
	if all, err := s.in.Peek(len(mark)); err == nil && string(all) == mark {
		_, _ = s.in.Discard(len(mark)) // it is buffered
	}
	_, err := s.in.Peek(1)
	return err
}

// Streams are those that the caller may see, as they are now.
func (g *Gateway) Streams(ctx context.Context) ([]api.Stream, error) {
	a, err := g.reading().ask(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "streams"}})
	if err == nil && a.status != http.StatusOK {
		err = g.fault(a)
	}
	if err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	var all api.Streams
	if json.Unmarshal(a.body, &all) != nil || all.Streams == nil {
		return nil, fmt.Errorf("list the streams: %w", g.fault(a))
	}
	return all.Streams, nil
}
