package deliver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

// posted returns an event with every attribute that an event can have.
func posted() *broker.View {
	return &broker.View{ID: "order-1", Source: "/shop", Type: "order-placed", Subject: "merchant-7", Time: "2026-03-01T12:00:00Z",
		DataContentType: "application/json", DataSchema: "https://shop.example/order/1", Data: []byte(`{"total":12.5}`),
		Extensions: []broker.Attribute{{Name: "partitionkey", Value: "shard 3"}, {Name: "traceparent", Value: traceParent},
			{Name: "tracestate", Value: "vendor=1"}, {Name: "correlationid", Value: "chain-9"}, {Name: "hops", Value: "2"}}}
}

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	traceParent = "00-" + traceID + "-b7ad6b7169203331-01"
)

func triggerTo(url string) config.Trigger {
	return config.Trigger{Name: "tell-shop", To: config.Target{URL: url},
		Delivery: config.Delivery{Attempts: 5, Timeout: 20 * time.Second, Concurrency: 8, Replies: config.Replies{Accept: true, AnyKey: true}}}
}

func newPoster(t testing.TB, trigger config.Trigger, o subscriberOptions) *subscriber {
	t.Helper()
	if o.Takers == nil {
		none := keys.NewTakers(config.Default())
		o.Takers = func() *keys.Takers { return none }
	}
	s, err := newSubscriber(trigger, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// answering starts a subscriber with a handler and returns its URL.
func answering(t testing.TB, h http.HandlerFunc) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// pipes are a network within the process, for tests in virtual time. While it is down all
// connections fail.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	mu    sync.Mutex
	down  bool
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.mu.Lock()
	down := p.down
	p.mu.Unlock()
	if down {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, errors.New("connection refused")
	}
}

// overPipes returns a subscriber whose handler is at the other end of a pipe.
func overPipes(t *testing.T, h http.HandlerFunc, change func(*config.Trigger)) (*subscriber, *pipes) {
	t.Helper()
	network := newPipes()
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(network) }() // Close ends it
	t.Cleanup(func() { _ = server.Close() })
	trigger := triggerTo("http://subscriber.example/")
	if change != nil {
		change(&trigger)
	}
	s := newPoster(t, trigger, subscriberOptions{})
	transport, err := s.connections.current()
	if err != nil {
		t.Fatal(err)
	}
	transport.Proxy, transport.DialContext = nil, network.dial
	return s, network
}

// expect checks an outcome's verdict and its reason.
func expect(t *testing.T, o attemptResult, want verdict, says ...string) {
	t.Helper()
	if o.kind != want {
		t.Errorf("it is %s, want %s: %s", o.kind, want, o.attempt.Error)
	}
	if (o.attempt.Error == "") != (want == delivered) {
		t.Errorf("%s with the reason %q", o.kind, o.attempt.Error)
	}
	if o.kind != delivered && o.replies != nil {
		t.Error("an event that was not delivered has replies")
	}
	for _, s := range says {
		if !strings.Contains(o.attempt.Error, s) {
			t.Errorf("the reason %q does not say %q", o.attempt.Error, s)
		}
	}
}

func readBody(t *testing.T, r *http.Request) []byte {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return b
}
