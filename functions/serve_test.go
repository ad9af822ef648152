package functions

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
)

// served is a function that is being served, until the test stops it.
type served struct {
	url  string
	stop context.CancelFunc
	err  chan error
	log  *lines
}

func start(t *testing.T, f Func) *served {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s := &served{url: "http://" + l.Addr().String(), stop: stop, err: make(chan error, 1), log: &lines{wrote: make(chan struct{}, 1)}}
	go func() { s.err <- serve(ctx, l, f, slog.New(slog.NewTextHandler(s.log, nil))) }()
	t.Cleanup(stop)
	return s
}

// speaking is a client that speaks one of the protocols.
func speaking(t *testing.T, h2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	transport := &http.Transport{Protocols: p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func send(t *testing.T, c *http.Client, url string) (status int, proto string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range binary() {
		req.Header.Set(name, value)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Proto
}

func TestServeSpeaksBothProtocols(t *testing.T) {
	t.Parallel()
	s := start(t, func(context.Context, event.Event) ([]event.Event, error) { return nil, nil })
	for h2, want := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		if status, proto := send(t, speaking(t, h2), s.url+"/any/path"); status != 204 || proto != want {
			t.Errorf("%d over %s, want %s", status, proto, want)
		}
	}
	res, err := speaking(t, false).Get(s.url + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(body) != "ok\n" {
		t.Errorf("/healthz: %d %s", res.StatusCode, body)
	}
	s.stop()
	if err := <-s.err; err != nil {
		t.Error(err)
	}
}

// A call that has begun is answered, however the program is stopped.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			began, end := make(chan struct{}), make(chan struct{})
			s := start(t, func(ctx context.Context, _ event.Event) ([]event.Event, error) {
				close(began)
				<-end
				return nil, ctx.Err()
			})
			answered := make(chan int, 1)
			c := speaking(t, h2)
			go func() { status, _ := send(t, c, s.url); answered <- status }()
			<-began
			s.stop()
			s.log.await("stopping")
			close(end)
			if status := <-answered; status != 204 {
				t.Errorf("the call under way is answered %d", status)
			}
			if err := <-s.err; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestServeNeedsAFreePort(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PORT", port)
	if err := Serve(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "set PORT") {
		t.Errorf("%v", err)
	}
}
