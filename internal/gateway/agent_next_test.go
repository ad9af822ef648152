package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/warmpods"
)

// endedAttempt returns an attempt in a container that has failed for good.
func (m *trainingWorld) endedAttempt(key string) *agentAttempt {
	m.Helper()
	a := m.beginRun("boxed", key)
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeFailed, Permanent: true}, &done)
	return a
}

// offerNext offers another attempt to the pod of an attempt when it waits. The returned function
// stops the offer, and waits until it is over.
func (m *trainingWorld) offerNext(to, next string) (wait func()) {
	shape := warmpods.Shape(m.planOf("boxed"))
	ctx, stop := context.WithCancel(m.Context())
	var giving sync.WaitGroup
	giving.Go(func() {
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return // the test itself reports that no attempt was given
			case <-look.C:
			}
			p, ok, err := m.warm.Take(context.Background(), shape)
			if err != nil || !ok {
				continue
			}
			if p.Attempt != to {
				m.Errorf("the pod of %s waits", p.Attempt)
			}
			if err := m.warm.Give(context.Background(), p, warmpods.Offer{Attempt: next, Token: "token of " + next}); err != nil {
				m.Error(err)
			}
			return
		}
	})
	return func() { stop(); giving.Wait() }
}

// planOf returns the plan with which the attempts of a recipe are launched.
func (m *trainingWorld) planOf(recipe string) tidemill.Plan {
	m.launched.mu.Lock()
	defer m.launched.mu.Unlock()
	for _, a := range m.launched.all {
		if a.Recipe == recipe {
			return a.Plan
		}
	}
	m.Fatalf("nothing was launched of recipe %s", recipe)
	return tidemill.Plan{}
}

// A pod whose run has ended waits, and gets another attempt of its shape. Its waiting time is
// counted, and shown for its pool.
func TestAPodLingers(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.endedAttempt("bot-1")
	defer m.offerNext(a.name, "run9-1")()
	r := a.post("/next", `{"pod":"pod-1","seconds":3600}`)
	var given api.Given
	if m.must(json.Unmarshal([]byte(r.body), &given)); r.StatusCode != http.StatusOK || given != (api.Given{Attempt: "run9-1", Token: "token of run9-1"}) {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r = a.post("/next", `{"pod":"pod-1","seconds":3600}`); !strings.Contains(r.body, "run9-1") {
		t.Errorf("asked again it hears %d %s", r.StatusCode, r.body)
	}
	if n := testutil.ToFloat64(m.gateway.metrics.idle.WithLabelValues("default")); n <= 0 {
		t.Errorf("%v GPU-seconds are counted", n)
	}
}

// The token of an attempt is refused once the pod's next attempt has requested its order. The pod
// then gets neither that attempt again nor permission to wait.
func TestATokenDoesNotOutliveItsPod(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.endedAttempt("bot-1")
	next := m.beginRun("boxed", "bot-2")
	given := m.offerNext(a.name, next.name)
	if r := a.post("/next", `{"pod":"pod-1","seconds":3600}`); !strings.Contains(r.body, next.name) {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	given()
	if r := m.do(http.MethodGet, next.path(""), "", "Authorization", "Bearer "+a.token); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("with the token of the one before: %d %s", r.StatusCode, r.body)
	}
	if r := a.post("/next", `{"pod":"pod-1","seconds":3600}`); !strings.Contains(r.body, next.name) {
		t.Errorf("before the next has begun: %d %s", r.StatusCode, r.body) // the first answer may have been lost
	}
	if r := m.do(http.MethodGet, next.path(""), "", "Authorization", "Bearer "+next.token); r.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	for range 2 {
		if r := a.post("/next", `{"pod":"pod-1","seconds":3600}`); r.StatusCode != http.StatusNoContent {
			t.Errorf("behind its pod's next: %d %s", r.StatusCode, r.body)
		}
		if is := must1(m.warm.Idle(t.Context(), "default"))(t); is.Pods != 0 {
			t.Errorf("%d pods wait", is.Pods)
		}
	}
}

func TestStillLingers(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ linger, ago, want time.Duration }{
		{time.Minute, 0, time.Minute},
		{time.Minute, nextSlack, time.Minute},
		{time.Minute, time.Minute, nextSlack},
		{time.Minute, time.Minute + nextSlack, 0},
		{time.Minute, time.Hour, time.Minute + nextSlack - time.Hour},
		{time.Minute, -time.Hour, time.Minute}, // clock of another machine that is ahead
		{0, 0, 0},
	} {
		if got := stillLingers(c.linger, now.Add(-c.ago), now); got != c.want {
			t.Errorf("%v ago, of %v: %v, want %v", c.ago, c.linger, got, c.want)
		}
	}
}

func TestLingeringPodsAreShown(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.endedAttempt("bot-1")
	var asking sync.WaitGroup
	asking.Go(func() {
		if r := a.post("/next", `{"pod":"pod-1","seconds":3600}`); r.StatusCode != http.StatusNoContent {
			t.Errorf("%d %s", r.StatusCode, r.body)
		}
	})
	m.waitUntil("it is shown", func() bool {
		var all api.Pools
		m.must(json.Unmarshal([]byte(m.do(http.MethodGet, "/api/v1/pools", "").body), &all))
		return len(all.Pools) == 1 && all.Pools[0].Lingering == 1 && all.Pools[0].IdleSeconds > 0
	})
	if ok, err := m.warm.Dismiss(t.Context(), "default"); !ok || err != nil {
		t.Error(ok, err)
	}
	asking.Wait()
}

// A pod that may not linger gets an answer at once, and does not wait.
func TestWhoMayNotLinger(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	folder := m.beginRun("fit", "bot-1")
	var done api.Finished
	folder.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded}, &done)
	lost := m.beginRun("boxed", "bot-2")
	m.loseAttempt(lost.run, 1)
	cancelled := m.beginRun("boxed", "bot-3")
	cancelled.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeCancelled}, &done)
	short := m.endedAttempt("bot-4")
	for what, a := range map[string]*agentAttempt{"a folder": folder, "a lost one": lost, "a cancelled one": cancelled} {
		if r := a.post("/next", `{"pod":"pod-1","seconds":3600}`); r.StatusCode != http.StatusNoContent {
			t.Errorf("%s: %d %s", what, r.StatusCode, r.body)
		}
	}
	without := m.openGateway(func(o *Options) {
		o.Runs, o.Ledger, o.Store, o.Tokens = m.foreman, m.ledger, m.store, m.tokens
	})
	impatient := m.openGateway(func(o *Options) {
		o.Runs, o.Ledger, o.Store, o.Tokens, o.Warm = m.foreman, m.ledger, m.store, m.tokens, m.warm
		c := must1(config.Parse("test.yaml", []byte(strings.Replace(attemptConfig, "linger: 1h", "linger: 1s", 1))))(t)
		o.Config = func() *config.Config { return c }
	})
	for what, at := range map[string]*Gateway{"without a book": without, "where pods linger for a second": impatient} {
		m.url = "http://" + at.Addr()
		if r := short.post("/next", `{"pod":"pod-1","seconds":3600}`); r.StatusCode != http.StatusNoContent {
			t.Errorf("%s: %d %s", what, r.StatusCode, r.body)
		}
	}
}

// A gateway that closes sends a waiting pod to another gateway, and does not wait for it.
func TestAGatewayClosesWhileAPodLingers(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.endedAttempt("bot-1")
	got := make(chan reply, 1)
	go func() { got <- a.post("/next", `{"pod":"pod-1","seconds":3600}`) }()
	m.waitUntil("it waits", func() bool { return must1(m.warm.Idle(t.Context(), "default"))(t).Pods == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	m.must(m.gateway.Close(ctx))
	wantProblem(t, <-got, http.StatusServiceUnavailable, api.Unavailable, "ask another")
	if is := must1(m.warm.Idle(t.Context(), "default"))(t); is.Pods != 0 {
		t.Errorf("%+v", is)
	}
}
