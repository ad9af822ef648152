package network

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// start serves a handler on loopback and returns the address.
func start(t *testing.T, o ServerOptions) (*Server, string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if o.Handler == nil {
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	}
	s := NewServer(o)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestALongHeadIsRefused(t *testing.T) {
	_, at := start(t, ServerOptions{})
	c := dial(t, at)
	_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: localhost\r\nA: %s\r\n", strings.Repeat("a", 2*MaxHeaders))
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Fatal(answer, err)
	}
}

// The oldest head makes room for a new one, but only after a second.
func TestTheOldestHeadMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerOptions{Unfinished: 100})
		l := s.Limit(&pipes{})
		first, second := accept(t, l), accept(t, l)
		if !send(first, 60) || send(second, 60) {
			t.Fatal("a new head has replaced one that has just begun")
		}
		time.Sleep(minAge)
		third := accept(t, l)
		if !send(third, 60) || send(first, 1) {
			t.Fatal("an old head has not made room")
		}
		connState(second.conn, http.StateClosed)
		connState(third.conn, http.StateActive)
		if s.bytes != 0 || s.heads.Len() != 0 {
			t.Errorf("%d bytes of %d heads are counted after the last is complete", s.bytes, s.heads.Len())
		}
		connState(third.conn, http.StateIdle)
		if s.Resting() != 1 || !send(third, 10) || s.Resting() != 0 || s.bytes != 10 {
			t.Errorf("a half-sent head after a request is not counted: %d resting, %d bytes", s.Resting(), s.bytes)
		}
	})
}

// pipes accepts connections in memory.
type pipes struct {
	net.Listener
	far net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	here, there := net.Pipe()
	p.far = there
	return here, nil
}

// accepted is an accepted connection and its other end.
type accepted struct {
	*conn
	far net.Conn
}

func accept(t *testing.T, l net.Listener) accepted {
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return accepted{c.(*conn), l.(*listener).Listener.(*pipes).far}
}

// send sends bytes of a head. It returns false if the server does not take them.
func send(c accepted, n int) bool {
	go func() { _, _ = c.far.Write(make([]byte, n)) }()
	_, err := io.ReadFull(c.conn, make([]byte, n))
	return err == nil
}
