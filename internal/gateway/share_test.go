package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestACallersShare(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess())
	w := newWorld(t, func(o *Options) { o.Access, o.Limits.UnderWay, o.Limits.Caller = guard, 320<<10, 120<<10 })
	large := strings.Repeat("x", 100<<10)
	r := w.post("/events", large, with(tokenHeader("all"), eventHeaders("1"))...)
	if p := problemOf(t, r); r.StatusCode != http.StatusTooManyRequests || p.Type != api.ProblemBase+api.TooManyRequests {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	for range 100 { // only succeeds if the room is returned after each request
		if r := w.post("/events", "small", with(tokenHeader("all"), eventHeaders("2"))...); r.StatusCode != http.StatusAccepted {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	if n := w.gateway.room.takenBytes(); n != 0 {
		t.Errorf("%v bytes are still taken", n)
	}
}

func TestRoomForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.UnderWay = 80 << 10 })
	r := w.post("/events", strings.Repeat("x", 100<<10), eventHeaders("1")...)
	if p := problemOf(t, r); r.StatusCode != http.StatusServiceUnavailable || p.Type != api.ProblemBase+api.Unavailable {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	many := w.post("/events", "["+strings.Repeat("{},", 5000)+"{}]", "Content-Type", batchType)
	if p := problemOf(t, many); many.StatusCode != http.StatusServiceUnavailable || p.Type != api.ProblemBase+api.Unavailable {
		t.Errorf("a small batch with a large answer: %d %.100s", many.StatusCode, many.body)
	}
	if r := w.post("/events", "small", eventHeaders("2")...); r.StatusCode != http.StatusAccepted {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// Net/http's own limits are for bodies. Kafka may take longer.
func TestAnAnswerMayTakeLongerThanABody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.ReadHeader, o.Limits.BodyGrace = 2*time.Second, 2*time.Second })
	release := w.stallStream(tidemill.StreamEvents)
	answer := make(chan reply, 1)
	go func() { answer <- w.post("/events", "hi", eventHeaders("1")...) }()
	held := time.NewTimer(4500 * time.Millisecond)
	defer held.Stop()
	<-held.C
	release()
	if r := <-answer; r.StatusCode != http.StatusAccepted || r.Close {
		t.Errorf("%d %s, and the connection ends: %t", r.StatusCode, r.body, r.Close)
	}
	if r := w.post("/events", "hi", eventHeaders("2")...); r.StatusCode != http.StatusAccepted {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

// Without a share for each caller, one reader could use up all tails.
func TestACallersShareOfTails(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess())
	w := newWorld(t, func(o *Options) { o.Access, o.Limits.Tails, o.Limits.OwnTails = guard, 3, 2 })
	first := w.listen("events/events", tokenHeader("reader")...)
	w.listen("events/events", tokenHeader("reader")...)
	r := w.do(http.MethodGet, "/api/v1/streams/events/events", "", tokenHeader("reader")...)
	if p := problemOf(t, r); r.StatusCode != http.StatusTooManyRequests || p.Type != api.ProblemBase+api.TooManyRequests {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	w.listen("events/events", tokenHeader("all")...)
	if r := w.do(http.MethodGet, "/api/v1/streams/events/events", "", tokenHeader("all")...); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	first.close()
	w.waitUntil("there is room again", func() bool { return w.gateway.tails.count() == 2 })
	w.listen("events/events", tokenHeader("reader")...)
}
