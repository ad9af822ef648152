package remote

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"time"
)

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
