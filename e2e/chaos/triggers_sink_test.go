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

// sink is the subscriber of all triggers. It lives in the test's process and
// writes down what comes, in one order, before it answers.
type sink struct {
	seed    uint64
	addr    string
	refused string // where nobody listens until it is revived

	mu       sync.Mutex
	clock    int
	tries    map[string]int             // rule and event → attempts so far
	fine     map[string]map[string]bool // rule → events that were answered well
	attempts []attempt
	wrong    faults        // what came altered
	revived  chan struct{} // closed when the dead come to life
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
	s.end(at, m)
	if m.wait {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, name, id, r.Header.Get("Ce-Subject"), m.status, try)
}

// check looks whether the event is the one that was published.
func (s *sink) check(r *http.Request, id string, body []byte) {
	h := r.Header
	key := keyOf(numberOf(id))
	for name, want := range map[string]string{"Ce-Specversion": "1.0", "Ce-Source": sourceHere, "Ce-Type": typeEvent, "Ce-Subject": key,
		"Ce-" + extOdd: strconv.FormatBool(numberOf(id)%2 == 1), "Content-Type": "text/plain", "Prefer": "reply"} {
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

// end writes down how an attempt is about to be answered. Whoever gets the
// answer can do nothing about it that the sink sees before.
func (s *sink) end(at int, m mood) {
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

// hang is true when the dead are alive.
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

// sleep does not notice that who asked has gone, as a function that is busy
// does not.
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
	_, _ = io.WriteString(w, replyData(id)) // who went away asks again
}

// now is the sink's clock.
func (s *sink) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock
}

// delivered is how many events of a rule were answered well.
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
