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

// TailOptions select the events to read.
type TailOptions struct {
	Stream string
	From   string // start in the gateway's notation; if empty, the end
	Where  string // filter in CloudEvents SQL; if empty, every event
	ToEnd  bool   // whether to end at the present end of the stream
	Limit  int    // number of events; 0 for no limit
	// Away is called once when the gateway stops answering, and once with nil when it is back.
	Away func(error)
}

// Tail reads a stream through the gateway. If the connection breaks, it reconnects and continues
// after the last complete event. One goroutine calls Next.
type Tail struct {
	g    *Gateway
	o    TailOptions
	news *eventQueue

	ctx     context.Context // context of the connections; ended by Close
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Tail begins to read. The result is an error if the stream does not exist, the caller may not read
// the stream, or the gateway does not answer within some seconds.
func (g *Gateway) Tail(ctx context.Context, o TailOptions) (*Tail, error) {
	t := &Tail{g: g, o: o, news: newQueue()}
	t.ctx, t.stop = context.WithCancel(context.Background())
	l := &tailLine{t: t, hangUp: func() {}}
	calling := context.AfterFunc(ctx, t.stop)
	err := l.openFirst()
	if !calling() {
		err = context.Cause(ctx)
	}
	if err != nil {
		t.stop()
		l.hangUp()
		return nil, fmt.Errorf("tail stream %s: %w", o.Stream, err)
	}
	t.running.Go(func() { t.news.end(l.readUntilEnd()) })
	return t, nil
}

// Close ends the connection.
func (t *Tail) Close() {
	t.stop()
	t.running.Wait()
}

// Next waits for events and returns those that have arrived. The result may be empty after a change
// of the gateway's availability. After the last event, the error is io.EOF.
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

// maxMessage is larger than the largest event: a dead letter of nine megabytes, as JSON with its
// data in base64.
const maxMessage = 32 << 20

var errTooLong = fmt.Errorf("the gateway sends an event of more than %d MiB", maxMessage>>20)

// sseMessage is one server-sent event with data.
type sseMessage struct {
	event string // type of the event; empty for a plain message
	data  []byte // data of the event; valid until the next message
}

// eventStream reads text/event-stream as the HTML standard defines it. An incomplete event at the
// end is ignored.
type eventStream struct {
	in      *bufio.Reader
	most    int // limit of an event's bytes
	began   bool
	afterCR bool // whether a following line feed belongs to the last line

	line, data []byte
	event      string
	id         string // id of the event being read; kept for the next events

	lastID string        // id of the last complete event
	retry  time.Duration // pause that the server requested; 0 for none
}

func newEventStream(in io.Reader, lastID string) *eventStream {
	return &eventStream{in: bufio.NewReaderSize(in, 64<<10), most: maxMessage, id: lastID, lastID: lastID}
}

// nextMessage returns the next event with data. If no complete event is left, the error is io.EOF
// or the reader's error.
func (s *eventStream) nextMessage() (sseMessage, error) {
	s.data, s.event = s.data[:0], ""
	filled := false
	for {
		line, err := s.readLine()
		if err != nil {
			return sseMessage{}, err
		}
		if len(line) > 0 {
			filled = s.readField(line) || filled
			continue
		}
		s.lastID = s.id
		if filled {
			return sseMessage{s.event, bytes.TrimSuffix(s.data, []byte("\n"))}, nil
		}
		s.event = ""
	}
}

// readField reads one line and reports whether the line was data.
func (s *eventStream) readField(line []byte) (data bool) {
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
	return false // also false for comments, whose name is empty
}

// readLine returns a line without its end: a line feed, a carriage return or both. After a carriage
// return, readLine does not wait for a line feed, because no line feed may follow.
func (s *eventStream) readLine() ([]byte, error) {
	s.line = s.line[:0]
	for {
		part, err := s.readMore()
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

// lineEnd returns the index of the end of a line. A carriage return is searched only before the
// line feed, because most senders never write carriage returns.
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

// readMore returns the bytes that have arrived, at least one byte. A line feed that belongs to the
// last line is skipped, and so is the byte order mark that the standard allows.
func (s *eventStream) readMore() ([]byte, error) {
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
		_, _ = s.in.Discard(len(mark)) // the mark is buffered
	}
	_, err := s.in.Peek(1)
	return err
}

// Streams returns the streams that the caller may see.
func (g *Gateway) Streams(ctx context.Context) ([]api.Stream, error) {
	a, err := g.reading().sendUntilFinal(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "streams"}})
	if err == nil && a.status != http.StatusOK {
		err = g.failureError(a)
	}
	if err != nil {
		return nil, fmt.Errorf("list the streams: %w", err)
	}
	var all api.Streams
	if json.Unmarshal(a.body, &all) != nil || all.Streams == nil {
		return nil, fmt.Errorf("list the streams: %w", g.failureError(a))
	}
	return all.Streams, nil
}
