package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"tidemill.dev/e2e/sim/vnet"
)

// receipt is an event that a subscriber took: its answer was a success, whether or not it arrived.
type receipt struct {
	at                time.Time
	path, id, key     string
	source, eventType string
}

// subscribers answer the triggers.
type subscribers struct {
	w      *world
	host   *vnet.Host
	server *http.Server

	mu    sync.Mutex
	calls int
	took  []receipt
	well  bool // every answer is a success
}

func newSubscribers(w *world) *subscribers {
	s := &subscribers{w: w, host: w.net.Host(subscribersHost)}
	l, err := s.host.Listen(w.ctx, "tcp", fmt.Sprint(":", subscriberPort))
	if err != nil {
		w.t.Fatal(err)
	}
	s.server = &http.Server{Handler: s}
	w.running.Go(func() { _ = s.server.Serve(l) }) // ends by Close
	return s
}

// ServeHTTP answers by the plan: at once, late, after a hang, twice, or with an error.
func (s *subscribers) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // an event whose bytes did not all arrive is not taken
	}
	one := receipt{path: r.URL.Path, id: r.Header.Get("Ce-Id"), key: r.Header.Get("Ce-Subject"), source: r.Header.Get("Ce-Source"), eventType: r.Header.Get("Ce-Type")}
	s.mu.Lock()
	s.calls++
	x := chance(s.w.p.seed, one.id, s.calls)
	sick := !s.well && int(x%100) < s.w.p.sick
	twice := s.w.p.twice && chance(s.w.p.seed+2, one.id, s.calls)%6 == 0
	s.mu.Unlock()
	if sick {
		s.w.history.say("subscriber: %s of %s gets the sick answer %d at %s", one.id, one.key, x>>32%4, one.path)
		switch x >> 32 % 4 {
		case 0:
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		case 1:
			rw.WriteHeader(http.StatusInternalServerError)
			return
		case 2: // takes the event, but answers too late
			s.took1(one)
			wait(r.Context(), 12*time.Second)
			return
		case 3: // hangs without taking it
			wait(r.Context(), 12*time.Second)
			rw.WriteHeader(http.StatusGatewayTimeout)
			return
		}
	}
	wait(r.Context(), time.Duration(x>>40%30)*time.Millisecond)
	s.took1(one)
	if twice {
		s.answerTwice(rw)
		return
	}
	rw.WriteHeader(http.StatusNoContent)
}

// answerTwice writes an answer twice, and reads no further request of the connection. Both come in one message: if the
// second one came after the next request, every HTTP client would take it for the answer to that.
func (s *subscribers) answerTwice(rw http.ResponseWriter) {
	conn, _, err := rw.(http.Hijacker).Hijack()
	if err != nil {
		s.w.t.Error(err)
		return
	}
	defer conn.Close()
	s.w.history.say("subscriber: that is answered twice")
	_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
	_, _ = conn.Write(bytes.Repeat([]byte("HTTP/1.1 204 No Content\r\n\r\n"), 2)) // the sender may have left
	_, _ = io.Copy(io.Discard, conn)
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *subscribers) took1(r receipt) {
	r.at = time.Now()
	s.w.history.say("subscriber: %s %s of %s is taken at %s", r.eventType, r.id, r.key, r.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, r)
}

func (s *subscribers) recover() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.well = true
}

// post is an event that a publisher sent until a gateway answered.
type post struct {
	id, typ, key string
	body         string
	began        time.Time
	acked        bool
}

// publishers post events of their own keys, one after the other, so that the order of the
// acknowledged events of a key is known.
type publishers struct {
	w    *world
	host *vnet.Host
	wg   sync.WaitGroup

	mu      sync.Mutex
	all     []*post
	commits []*commit
}

func newPublishers(w *world) *publishers { return &publishers{w: w, host: w.net.Host(publishersHost)} }

// waitUntilServed posts nothing. A trigger begins with the events after its first start, so the
// dispatchers must have started, too.
func (b *publishers) waitUntilServed() {
	for _, o := range b.w.procs {
		for !o.ready.Load() && b.w.ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	for _, door := range b.w.doors() {
		c := b.w.client(b.host, door)
		for range 600 {
			res, err := c.Get(gatewayURL + "/healthz")
			if err == nil {
				res.Body.Close()
				if res.StatusCode == http.StatusOK {
					break
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		c.CloseIdleConnections()
	}
}

// begin begins to publish. A second time it uses the keys of the first one, and other ids.
func (b *publishers) begin(again int) {
	for i := range b.w.p.publishers {
		b.wg.Go(func() { b.publish(i + again*b.w.p.publishers) })
	}
	if again > 0 {
		return
	}
	if b.w.p.guests {
		b.wg.Go(b.publishSide)
	}
	for i := range b.w.p.committers {
		b.wg.Go(func() { b.commitData(i) })
	}
}

// clients returns a client of each gateway.
func (b *publishers) clients() (all []*http.Client, done func()) {
	for _, door := range b.w.doors() {
		all = append(all, b.w.client(b.host, door))
	}
	return all, func() {
		for _, c := range all {
			c.CloseIdleConnections()
		}
	}
}

func (b *publishers) publish(i int) {
	r := random(b.w.p.seed, fmt.Sprint("publisher", i))
	clients, done := b.clients()
	defer done()
	until := time.Now().Add(b.w.p.load)
	for n := 0; time.Now().Before(until); n++ {
		e := &post{id: fmt.Sprintf(b.w.p.idForm, i, n), key: fmt.Sprintf(b.w.p.keyForm, i%b.w.p.publishers, r.IntN(b.w.p.keys)), body: `{"x":[1,0]}`}
		switch f, k := &b.w.p.focus, r.IntN(b.w.p.focus.orders+b.w.p.focus.messages+b.w.p.focus.bots); {
		case n == 0 && b.w.p.judging != (judging{}): // the first model of a key
			e.typ = "bot-created"
		case k < f.orders:
			e.typ = "order-paid"
		case k < f.orders+f.messages:
			e.typ = "message"
		default:
			e.typ = "bot-created"
		}
		if e.typ == "message" && b.w.p.observers > 0 {
			e.body = fmt.Sprintf(`{"x":[1,0],"user":"user-%d"}`, n%10)
			b.label(e, n, clients)
			continue
		}
		b.post(e, clients, r.IntN(len(clients)))
		time.Sleep(time.Duration(r.Int64N(2 * int64(b.w.p.every))))
	}
}

// label posts a message and up to three labels for it: before it or after it, repeated, contradicting, late, or for a
// message that does not exist.
func (b *publishers) label(e *post, n int, clients []*http.Client) {
	verdict := func(i int) {
		r, of := random(b.w.p.seed, fmt.Sprint("label ", i, " of ", e.id)), e.id
		if r.IntN(12) == 0 {
			of = "absent-" + of
		}
		b.post(&post{id: fmt.Sprintf("v%d-%s", i, e.id), typ: "verdict", key: e.key, body: fmt.Sprintf(`{"of":%q,"from":"/sim","truth":%q}`, of, []string{"no", "yes"}[min(r.IntN(6), 1)])}, clients, r.IntN(len(clients)))
	}
	r := random(b.w.p.seed, "labels of "+e.id)
	if r.IntN(4) == 0 {
		verdict(0)
	}
	b.post(e, clients, r.IntN(len(clients)))
	if r.IntN(2) == 0 {
		verdict(1)
	}
	if n%7 == 0 {
		after := time.Duration(r.Int64N(int64(labelWait) * 3 / 2))
		b.wg.Go(func() {
			time.Sleep(after)
			verdict(2)
		})
	}
	time.Sleep(time.Duration(r.Int64N(2 * int64(b.w.p.every))))
}

func (b *publishers) post(e *post, clients []*http.Client, first int) {
	e.began = time.Now()
	b.mu.Lock()
	b.all = append(b.all, e)
	b.mu.Unlock()
	b.send(e, clients, first)
}

// send sends an event again until a gateway acknowledges it, as a publisher should.
func (b *publishers) send(e *post, clients []*http.Client, first int) {
	for try := range 300 {
		req, err := http.NewRequestWithContext(b.w.ctx, http.MethodPost, gatewayURL+"/events", strings.NewReader(e.body))
		if err != nil {
			b.w.t.Error(err)
			return
		}
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": e.id, "Ce-Source": "/sim", "Ce-Type": e.typ, "Ce-Subject": e.key, "Content-Type": "application/json"} {
			req.Header.Set(name, value)
		}
		res, err := clients[(first+try)%len(clients)].Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode/100 == 2 {
				b.mu.Lock()
				e.acked = true
				b.mu.Unlock()
				b.w.history.say("publisher: %s %s of %s is acknowledged", e.typ, e.id, e.key)
				return
			}
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		b.w.history.say("publisher: %s %s of %s: %v", e.typ, e.id, e.key, err)
		sleep(b.w.ctx, 500*time.Millisecond)
	}
}
