package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// balancer passes requests to the ready replicas in turn, as a real load balancer does.
type balancer struct {
	mu    sync.Mutex
	ready []string       // base URLs
	under map[string]int // requests under way, by replica
	turn  int
}

// watch polls the readiness of a replica until the replica has stopped.
func (b *balancer) watch(ctx context.Context, replica string) {
	often := time.NewTicker(10 * time.Millisecond)
	defer often.Stop()
	for ctx.Err() == nil {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, replica+"/readyz", nil)
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		}
		b.set(replica, err == nil && res.StatusCode == http.StatusOK)
		<-often.C
	}
	b.set(replica, false)
}

func (b *balancer) set(replica string, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.ready, replica)
	switch {
	case ready && i < 0:
		b.ready = append(b.ready, replica)
	case !ready && i >= 0:
		b.ready = slices.Delete(b.ready, i, i+1)
	}
}

func (b *balancer) has(replica string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.ready, replica)
}

// hasTurnedAway reports whether the balancer has stopped sending requests to a replica, and no
// request is under way.
func (b *balancer) hasTurnedAway(replica string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.Contains(b.ready, replica) && b.under[replica] == 0
}

func (b *balancer) rewrite(r *httputil.ProxyRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ready) > 0 {
		b.turn++
		replica := b.ready[b.turn%len(b.ready)]
		b.under[replica]++
		to, _ := url.Parse(replica)
		r.SetURL(to)
	}
}

// RoundTrip passes a request to a ready replica.
func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.under["http://"+r.URL.Host]--
	}()
	return http.DefaultTransport.RoundTrip(r)
}

func TestARestartBehindASecondReplica(t *testing.T) {
	t.Parallel()
	alone := func(o *Options) { o.Ready = readyOfTests }
	w := newWorld(t, alone)
	b := &balancer{under: map[string]int{}}
	watching, stop := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	join := func(g *Gateway) {
		replica := "http://" + g.Addr()
		watchers.Go(func() { b.watch(watching, replica) })
		w.waitUntil("the replica is ready", func() bool { return b.has(replica) })
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: b.rewrite, Transport: b})
	defer proxy.Close()
	join(w.gateway)
	other := w.openGateway(alone)
	join(other)

	end := w.publishAll(proxy.URL)
	for _, g := range []*Gateway{w.gateway, other} {
		next := w.openGateway(alone)
		g.draining.Store(true) // Close does this before its delay; here the delay is as long as the balancer needs
		w.waitUntil("the balancer has turned away", func() bool { return b.hasTurnedAway("http://" + g.Addr()) })
		w.must(g.Close(t.Context()))
		join(next)
	}
	all := end()
	if len(all) == 0 {
		t.Error("nothing was accepted")
	}
	stored := map[string]bool{}
	for _, id := range ids(w.storedEvents(tidemill.StreamEvents)) {
		stored[id] = true
	}
	for _, id := range all {
		if !stored[id] {
			t.Errorf("event %s was accepted and is not stored", id)
		}
	}
}

// publishAll publishes from several goroutines until the test ends it, and then returns the
// accepted ids. Any other answer is an error.
func (w *world) publishAll(to string) (end func() []string) {
	ctx, stop := context.WithCancel(w.Context())
	var publishers sync.WaitGroup
	var mu sync.Mutex
	var all []string
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	for p := range 8 {
		publishers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("%d-%d", p, n)
				req, _ := http.NewRequestWithContext(w.Context(), http.MethodPost, to+"/events", strings.NewReader("x"))
				for i, h := 0, eventHeaders(id); i < len(h); i += 2 {
					req.Header.Set(h[i], h[i+1])
				}
				res, err := client.Do(req)
				if err != nil {
					w.Errorf("publish %s: %v", id, err)
					continue
				}
				res.Body.Close()
				if res.StatusCode != http.StatusAccepted {
					w.Errorf("publish %s: %d", id, res.StatusCode)
					continue
				}
				mu.Lock()
				all = append(all, id)
				mu.Unlock()
			}
		})
	}
	return func() []string {
		stop()
		publishers.Wait()
		client.CloseIdleConnections()
		return all
	}
}

func TestDraining(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.gateway.draining.Store(true)
	if r := w.do(http.MethodGet, "/readyz", ""); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(r.body, "draining") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.post("/events", "", eventHeaders("1")...); r.StatusCode != http.StatusAccepted || !r.Close {
		t.Errorf("%d, and the connection stays: %t", r.StatusCode, !r.Close)
	}
	if r := w.do(http.MethodGet, "/healthz", ""); r.StatusCode != http.StatusOK {
		t.Error("whoever drains is alive")
	}
	w.must(w.gateway.Close(t.Context()))
	if _, err := w.gateway.listener.Accept(); !errors.Is(err, net.ErrClosed) { // another process may have the address by now
		t.Errorf("who comes to a closed gateway meets %v", err)
	}
}

// While the gateway drains, it continues to answer, and says that it is not ready. A balancer
// has that time to notice.
func TestWhoComesWhileItDrainsIsAnswered(t *testing.T) {
	const delay = time.Minute
	o := Options{Limits: Limits{DrainDelay: delay}, Ready: readyOfTests}
	inBubble(t, o, func(t *testing.T, g *Gateway, dial func() net.Conn) {
		ask := func(path string) reply {
			c := dial()
			go func() { _, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n") }()
			return read(t, must1(http.ReadResponse(bufio.NewReader(c), nil))(t))
		}
		if r := ask("/readyz"); r.StatusCode != http.StatusOK || r.Close {
			t.Errorf("before it, %d %s, and the connection ends: %t", r.StatusCode, r.body, r.Close)
		}
		began, closed := time.Now(), make(chan error, 1)
		go func() { closed <- g.Close(t.Context()) }()
		<-time.After(delay - 10*time.Second)
		if r := ask("/readyz"); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(r.body, "draining") {
			t.Errorf("%d %s", r.StatusCode, r.body)
		}
		if r := ask("/healthz"); r.StatusCode != http.StatusOK || !r.Close {
			t.Errorf("%d, and the connection stays: %t", r.StatusCode, !r.Close)
		}
		if err := <-closed; err != nil || time.Since(began) < delay {
			t.Errorf("it has closed after %s: %v", time.Since(began), err)
		}
	})
}

// readyOfTests is the check of a process without dependencies.
func readyOfTests(context.Context) api.Readiness { return api.Readiness{Status: api.OK} }

// When the gateway closes, requests under way get their answers.
func TestCloseWaitsForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	release := w.stallStream(tidemill.StreamEvents)
	answer := make(chan reply, 1)
	go func() { answer <- w.post("/events", "", eventHeaders("1")...) }()
	w.waitUntil("the event is under way", func() bool { return w.gateway.window.takenBytes() > 0 })
	closed := make(chan error, 1)
	go func() { closed <- w.gateway.Close(t.Context()) }()
	w.waitUntil("the door is closed", func() bool { _, err := http.Get(w.url + "/healthz"); return err != nil })
	release()
	if r := <-answer; r.StatusCode != http.StatusAccepted {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	w.must(<-closed)
}

// earlyDeadline reports a deadline earlier than its real one, so that work that obeys it is in time
// even on a busy machine.
type earlyDeadline struct {
	context.Context
	at time.Time
}

// Deadline returns the reported deadline.
func (d earlyDeadline) Deadline() (time.Time, bool) { return d.at, true }

// If Kafka does not answer before the time to close is over, waiting publishers get the
// answer in-doubt, and are not cut off.
func TestCloseAnswersThoseWhoWaitForAStalledKafka(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	defer w.stallStream(tidemill.StreamEvents)()
	answers := make(chan reply, 2)
	var callers sync.WaitGroup
	callers.Go(func() { answers <- w.post("/events", "", eventHeaders("1")...) })
	w.waitUntil("the event is under way", func() bool { return w.gateway.window.takenBytes() > 0 })
	one := w.gateway.window.takenBytes()
	callers.Go(func() { answers <- w.batch("/events", batchEvent("2", "test", "")) })
	w.waitUntil("the batch is under way", func() bool { return w.gateway.window.takenBytes() > one })
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	w.must(w.gateway.Close(earlyDeadline{ctx, time.Now().Add(4 * time.Second)}))
	callers.Wait()
	close(answers)
	for r := range answers {
		if r.StatusCode != http.StatusServiceUnavailable || !r.Close || r.Header.Get("Retry-After") == "" || !strings.Contains(r.body, api.ProblemBase+api.InDoubt) {
			t.Errorf("%d, and the connection stays: %t: %s", r.StatusCode, !r.Close, r.body)
		}
	}
}

// An event that arrives too late is not sent, so that its publisher is not left in doubt.
func TestNothingIsSentWhenItIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	close(w.gateway.over)
	if p := problemOf(t, w.post("/events", "", eventHeaders("1")...)); p.Type != api.ProblemBase+api.Unavailable || !strings.Contains(p.Detail, "stopping") {
		t.Errorf("%+v", p)
	}
	if n := len(w.storedEvents(tidemill.StreamEvents)); n != 0 {
		t.Errorf("%d stored", n)
	}
}
