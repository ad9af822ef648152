package chaos

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sink is the subscriber of all triggers. It runs in the test's process. Before it answers a
// request, it records the request, all in one order.
type sink struct {
	seed    uint64
	addr    string
	refused string // address at which no server listens until the dead subscribers are revived

	mu       sync.Mutex
	clock    int
	tries    map[string]int             // number of attempts so far, by rule and event
	fine     map[string]map[string]bool // events that were answered with a 2xx, by rule
	attempts []attempt
	wrong    faults        // faults in the requests
	revived  chan struct{} // closed when the dead subscribers are revived
	ended    chan struct{} // closed when the round ends
	servers  []*http.Server
	serving  sync.WaitGroup
}

func openSink(seed uint64) (*sink, error) {
	s := &sink{seed: seed, tries: map[string]int{}, fine: map[string]map[string]bool{}, revived: make(chan struct{}), ended: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.addr = l.Addr().String()
	s.serve(l)
	dead, err := freeAddrs(1)
	if err != nil {
		return s, err
	}
	s.refused = dead[0]
	return s, nil
}

func (s *sink) serve(l net.Listener) {
	one := &http.Server{Handler: s}
	s.servers = append(s.servers, one)
	s.serving.Go(func() { _ = one.Serve(l) })
}

// revive lets the dead subscribers answer like the others.
func (s *sink) revive() error {
	l, err := net.Listen("tcp", s.refused)
	if err != nil {
		return err
	}
	s.serve(l)
	close(s.revived)
	return nil
}

func (s *sink) close() {
	close(s.ended)
	for _, one := range s.servers {
		_ = one.Close()
	}
	s.serving.Wait()
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // a dispatcher was killed while it wrote
	}
	name, id := strings.TrimPrefix(r.URL.Path, "/"), r.Header.Get("Ce-Id")
	s.check(r, id, body)
	at, try := s.begin(name, id)
	if name == "hanging" && !s.hang(r.Context()) {
		return
	}
	m := moodOf(s.seed, name, id, try)
	if m.after > 0 && !s.sleep(m.after) {
		return
	}
	if m.cut {
		panic(http.ErrAbortHandler)
	}
	s.recordAnswer(at, m)
	if m.wait {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, name, id, r.Header.Get("Ce-Subject"), m.status, try)
}

// preferenceOf returns the header Prefer of a rule's requests. Only a trigger that accepts replies
// asks for them.
func preferenceOf(name string) string {
	if r, _ := ruleOf(name); r.replies {
		return "reply"
	}
	return ""
}

// check compares the event with the published one.
func (s *sink) check(r *http.Request, id string, body []byte) {
	h := r.Header
	key := keyOf(numberOf(id))
	for name, want := range map[string]string{"Ce-Specversion": "1.0", "Ce-Source": sourceHere, "Ce-Type": typeEvent, "Ce-Subject": key,
		"Ce-" + extOdd: strconv.FormatBool(numberOf(id)%2 == 1), "Content-Type": "text/plain", "Prefer": preferenceOf(strings.TrimPrefix(r.URL.Path, "/"))} {
		if got := h.Get(name); got != want {
			s.fault("altered: %s came to %s with %s %q, not %q", id, r.URL.Path, name, got, want)
		}
	}
	if string(body) != dataOf(id) || r.Method != http.MethodPost {
		s.fault("altered: %s came to %s with %s and the data %.80q", id, r.URL.Path, r.Method, body)
	}
}

func (s *sink) fault(format string, words ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong.add(format, words...)
}

func (s *sink) begin(rule, id string) (at, try int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	s.attempts = append(s.attempts, attempt{rule: rule, id: id, began: s.clock})
	name := rule + " " + id
	s.tries[name]++
	return len(s.attempts) - 1, s.tries[name] - 1
}

// recordAnswer records the answer before it is sent. So everything that the dispatcher does because of the
// answer comes later in the sink's order.
func (s *sink) recordAnswer(at int, m mood) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	a := &s.attempts[at]
	a.ended, a.status, a.late = s.clock, m.status, m.after == longSleep
	if a.fine() {
		if s.fine[a.rule] == nil {
			s.fine[a.rule] = map[string]bool{}
		}
		s.fine[a.rule][a.id] = true
	}
}

// hang waits, and returns true when the dead subscribers are revived.
func (s *sink) hang(ctx context.Context) bool {
	select {
	case <-s.revived:
		return true
	case <-ctx.Done():
		return false
	case <-s.ended:
		return false
	}
}

// sleep does not end when the dispatcher closes the connection, as in a function that is busy.
func (s *sink) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ended:
		return false
	}
}

func answer(w http.ResponseWriter, rule, id, key string, status, try int) {
	r, _ := ruleOf(rule)
	switch {
	case status/100 != 2 || !r.replies:
		w.WriteHeader(status)
		return
	}
	h := w.Header()
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": fmt.Sprintf("own-%s-%d", id, try), "Ce-Source": sourceSink,
		"Ce-Type": typeReply, "Ce-Subject": key, "Ce-" + extReplyTo: id, "Content-Type": "text/plain"} {
		h.Set(name, value)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, replyData(id)) // if a dispatcher was killed, the event is delivered again
}

// now returns the sink's clock.
func (s *sink) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock
}

// delivered returns the events of a rule that were answered with a 2xx.
func (s *sink) delivered(rule string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool, len(s.fine[rule]))
	for id := range s.fine[rule] {
		all[id] = true
	}
	return all
}

func (s *sink) story() (attempts []attempt, wrong faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(attempts, s.attempts...), append(wrong, s.wrong...)
}
