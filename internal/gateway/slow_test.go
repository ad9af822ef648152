package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
)

// pipeListener is a listener whose connections are net.Pipes, because they work with virtual time.
type pipeListener struct {
	waiting chan net.Conn
	closed  chan struct{}
}

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-p.waiting:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) Close() error   { close(p.closed); return nil }
func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	p.waiting <- there
	return here
}

// inBubble serves a gateway without servers, in virtual time.
func inBubble(t *testing.T, o Options, test func(t *testing.T, g *Gateway, dial func() net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		o.Listen, o.Config = "127.0.0.1:0", config.Default
		o.Telemetry = must1(telemetry.Start(t.Context(), telemetry.Options{Getenv: func(string) string { return "" }}))(t)
		g := must1(Open(t.Context(), o))(t)
		p := &pipeListener{make(chan net.Conn), make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- g.server.Serve(p) }()
		test(t, g, p.dial)
		for _, err := range []error{g.server.Close(), g.listener.Close()} {
			if err != nil && !errors.Is(err, net.ErrClosed) { // the test may have closed it
				t.Error(err)
			}
		}
		<-served
		<-time.After(time.Minute) // net/http and the senders need a while to finish
	})
}

func noEvent(length int) string {
	return fmt.Sprintf("POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", length)
}

func TestASlowBodyIsGivenUp(t *testing.T) {
	for name, sent := range map[string]string{
		"small": noEvent(10) + "hello",
		"large": noEvent(100<<10) + strings.Repeat("x", 80<<10),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
				c := dial()
				go func() { _, _ = io.WriteString(c, sent) }()
				r := read(t, must1(http.ReadResponse(bufio.NewReader(c), nil))(t))
				if p := problemOf(t, r); p.Type != api.ProblemBase+api.TooSlow || !r.Close {
					t.Errorf("%+v, and the connection stays: %t", p, !r.Close)
				}
			})
		})
	}
}

// If the caller is refused, or the route takes no body, the answer comes at once. A body that
// does not arrive then holds no connection.
func TestABodyThatNobodyReadsIsNotWaitedFor(t *testing.T) {
	for name, sent := range map[string]string{
		"a length": "POST /events HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000\r\n\r\n",
		"chunks":   "POST /events HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
		"a path":   "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"headers":  "POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\nx: " + strings.Repeat("x", 17<<10) + "\r\n\r\n",
		"a GET":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
				c, began := dial(), time.Now()
				go func() { _, _ = io.WriteString(c, sent) }()
				in := bufio.NewReader(c)
				r := read(t, must1(http.ReadResponse(in, nil))(t))
				if took := time.Since(began); took > 0 || !r.Close {
					t.Errorf("%s after %s, and the connection stays: %t", r.Status, took, !r.Close)
				}
				_, _ = io.Copy(io.Discard, in)
				if took := time.Since(began); took > 2*lingerFor {
					t.Errorf("it hangs up after %s", took)
				}
			})
		})
	}
}

// A megabyte on a line of 32 KiB per second takes longer than the grace, and is accepted.
func TestABigUploadOnASlowLine(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
		const size = 1 << 20
		c := dial()
		go func() {
			_, _ = io.WriteString(c, noEvent(size))
			piece := strings.Repeat("x", 4<<10)
			for range size / len(piece) {
				<-time.After(time.Second / 8)
				_, _ = io.WriteString(c, piece)
			}
		}()
		began := time.Now()
		r := read(t, must1(http.ReadResponse(bufio.NewReader(c), nil))(t))
		if p := problemOf(t, r); p.Type != api.ProblemBase+api.InvalidEvent {
			t.Errorf("after %s: %+v", time.Since(began), p)
		}
	})
}

// A trickle may stay within the time limit of every single read, but not within the rate.
func TestATrickleIsGivenUp(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
		c := dial()
		go func() {
			_, err := io.WriteString(c, noEvent(1<<20))
			for err == nil {
				<-time.After(time.Second)
				_, err = io.WriteString(c, "x")
			}
		}()
		r := read(t, must1(http.ReadResponse(bufio.NewReader(c), nil))(t))
		if p := problemOf(t, r); p.Type != api.ProblemBase+api.TooSlow {
			t.Errorf("%+v", p)
		}
	})
}

// If headers do not come, net/http closes the connection without an answer.
func TestSlowHeadersAndIdleConnections(t *testing.T) {
	for name, sent := range map[string]string{
		"nothing": "", "half": "POST /events HTTP/1.1\r\nHost:", "idle": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(t *testing.T, g *Gateway, dial func() net.Conn) {
				c := dial()
				go func() { _, _ = io.WriteString(c, sent) }()
				began := time.Now()
				answer := must1(io.ReadAll(c))(t)
				if took := time.Since(began); took < 10*time.Second || took > 2*time.Minute {
					t.Errorf("after %s: %q", took, answer)
				}
			})
		})
	}
}

func TestReadinessIsLookedAtOnceForAll(t *testing.T) {
	looks := 0
	o := Options{Ready: func(context.Context) api.Readiness {
		looks++
		return api.Readiness{Status: api.Degraded, Checks: []api.Check{{Name: "redis", Status: api.Degraded}}}
	}}
	inBubble(t, o, func(t *testing.T, g *Gateway, dial func() net.Conn) {
		for range 3 {
			if s := g.checkState(); s.Status != api.Degraded || len(s.Checks) != 2 {
				t.Errorf("%+v", s)
			}
		}
		if looks != 1 {
			t.Errorf("looked %d times", looks)
		}
		<-time.After(2 * readyFor)
		if g.checkState(); looks != 2 {
			t.Errorf("looked %d times", looks)
		}
	})
}
