package client

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestEventStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in, want, lastID string
		retry            time.Duration
	}{
		"one":                {"data: x\n\n", "[ x]", "", 0},
		"a byte order mark":  {"\ufeffdata: x\n\n", "[ x]", "", 0},
		"all fields":         {"id: 7\nevent: add\ndata: x\nretry: 1500\n\n", "[add x]", "7", 1500 * time.Millisecond},
		"many lines":         {"data: a\ndata:b\ndata:  c\n\n", "[ a\nb\n c]", "", 0},
		"empty data":         {"data\n\ndata:\n\n", "[ ][ ]", "", 0},
		"comments":           {": keepalive\n\n:\ndata: x\n: more\n\n", "[ x]", "", 0},
		"CR LF":              {"id: 1\r\ndata: a\r\n\r\ndata: b\r\n\r\n", "[ a][ b]", "1", 0},
		"CR":                 {"id: 1\rdata: a\r\rdata: b\r\r", "[ a][ b]", "1", 0},
		"an id alone":        {"id: 5\n\n", "", "5", 0},
		"ids stay":           {"id: 5\ndata: a\n\ndata: b\n\n", "[ a][ b]", "5", 0},
		"ids can be emptied": {"id: 5\ndata: a\n\nid\ndata: b\n\n", "[ a][ b]", "", 0},
		"no NUL":             {"id: a\x00b\ndata: x\n\n", "[ x]", "", 0},
		"cut in an event":    {"id: 1\ndata: a\n\nid: 2\ndata: b\n", "[ a]", "1", 0},
		"cut in a line":      {"id: 1\ndata: a\n\nid: 2\ndata: lo", "[ a]", "1", 0},
		"types do not stay":  {"event: end\n\ndata: x\n\n", "[ x]", "", 0},
		"unknown fields":     {"foo: bar\ndata: x\nbaz\n\n", "[ x]", "", 0},
		"no such retry":      {"retry: soon\nretry: -1\ndata: x\n\n", "[ x]", "", 0},
		"nothing":            {"", "", "", 0},
	} {
		for i, in := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in)), iotest.DataErrReader(strings.NewReader(c.in))} {
			s, got := newEventStream(in, ""), ""
			m, err := s.nextMessage()
			for ; err == nil; m, err = s.nextMessage() {
				got += fmt.Sprintf("[%s %s]", m.event, m.data)
			}
			if got != c.want || s.lastID != c.lastID || s.retry != c.retry || !errors.Is(err, io.EOF) {
				t.Errorf("%s, read %d: %q, id %q, retry %s, %v", name, i, got, s.lastID, s.retry, err)
			}
		}
	}
}

// A complete event is returned even if no byte follows.
func TestEventStreamDoesNotWaitForMore(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\n\n", "\r\r", "\r\n\r\n"} {
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, "data: x"+end) }()
		m, err := newEventStream(r, "").nextMessage()
		if err != nil || string(m.data) != "x" {
			t.Errorf("%q: %q, %v", end, m.data, err)
		}
	}
}

func TestEventStreamBoundsAnEvent(t *testing.T) {
	t.Parallel()
	for _, in := range []string{strings.Repeat("x", 100_001), strings.Repeat("data: "+strings.Repeat("x", 1000)+"\n", 101)} {
		s := newEventStream(strings.NewReader(in), "")
		s.most = 100_000
		if _, err := s.nextMessage(); !errors.Is(err, errTooLong) {
			t.Errorf("%v", err)
		}
	}
}

func FuzzEventStream(f *testing.F) {
	for _, in := range []string{"id: 1\r\ndata: a\r\n\r\n", "\ufeffdata\r\r", "retry: 1\n\n:\n", "\r\n\r\n"} {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in string) {
		read := func(r io.Reader) (all string) {
			s := newEventStream(r, "")
			for m, err := s.nextMessage(); err == nil; m, err = s.nextMessage() {
				all += fmt.Sprintf("%q %q %q\n", m.event, m.data, s.lastID)
			}
			return all
		}
		if whole, parts := read(strings.NewReader(in)), read(iotest.OneByteReader(strings.NewReader(in))); whole != parts {
			t.Errorf("read at once\n%sread byte by byte\n%s", whole, parts)
		}
	})
}
