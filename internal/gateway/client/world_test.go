package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/network"
)

// memoryListener is a listener in memory, so that retries run in virtual time.
type memoryListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (w *memoryListener) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case w.accepted <- theirs:
		return ours, nil
	case <-w.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("refused")}
	}
}

func (w *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.accepted:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *memoryListener) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *memoryListener) Addr() net.Addr { return &net.TCPAddr{} }

// gatewayOf returns a client of a gateway with the handler's answers.
func gatewayOf(t *testing.T, answer http.HandlerFunc) *Gateway {
	t.Helper()
	w := &memoryListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: answer}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(w) })
	g, err := open(Options{URL: "http://127.0.0.1:1/base", Network: network.Network{Dial: w.dial}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Close()
		_ = server.Close()
		serving.Wait()
	})
	return g
}

// inOrder answers requests with the handlers in order, and repeats the last.
func inOrder(answers ...http.HandlerFunc) (http.HandlerFunc, *int) {
	var mu sync.Mutex
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		at := min(n, len(answers)-1)
		n++
		mu.Unlock()
		answers[at](w, r)
	}, &n
}

// problemHandler writes a problem.
func problemHandler(p api.Problem, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Content-Type", api.ProblemType)
		w.WriteHeader(p.Status)
		_ = json.NewEncoder(w).Encode(p)
	}
}

func slug(s string, status int, detail string) api.Problem {
	return api.Problem{Type: api.ProblemBase + s, Title: s, Status: status, Detail: detail}
}

// htmlHandler answers with HTML, as no gateway does.
func htmlHandler(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}
}

func stored(at string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderPosition, at)
		w.WriteHeader(http.StatusAccepted)
	}
}

// hungUp breaks the connection without an answer.
func hungUp(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

// neverAnswer never answers.
func neverAnswer(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func event(id string) *broker.View {
	return &broker.View{ID: id, Source: "/test", Type: "t", Subject: "k"}
}

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
