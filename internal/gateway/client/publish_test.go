package client

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

func TestPublishSaysWhereTheEventIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "POST" || r.URL.Path != "/base/events" || r.Header.Get("Ce-Id") != "1" || r.Header.Get("Ce-Specversion") != "1.0" {
				t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
			}
			stored("events/3/17")(w, r)
		})
		got, err := g.Publish(t.Context(), "", event("1"))
		want := Receipt{Receipt: broker.Receipt{Stream: "events", Partition: 3, Offset: 17}}
		if got != want || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestPublishSaysThatItWasThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/base/streams/messages" {
				t.Errorf("%s", r.URL)
			}
			w.Header().Set(api.HeaderRepeated, "true")
			w.WriteHeader(http.StatusAccepted)
		})
		if got, err := g.Publish(t.Context(), "messages", event("1")); !got.Repeated || err != nil {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A success without a valid position is an error, because a web server may answer 200 to any path.
func TestNoSuccessIsBelievedThatSaysNotWhere(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"page": htmlHandler(200, "<html>hello</html>"), "accepted": htmlHandler(202, ""), "no content": htmlHandler(204, ""),
		"torn": stored("events/3"), "negative": stored("events/-1/2"), "no number": stored("events/3/x"), "no stream": stored("/3/4"),
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewayOf(t, answer)
			if _, err := g.Publish(t.Context(), "", event("1")); err == nil || !strings.Contains(err.Error(), "is it one?") && !strings.Contains(err.Error(), "is it a gateway of Tidemill?") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

func TestWhatPassesIsTriedAgain(t *testing.T) {
	t.Parallel()
	for name, passes := range map[string]http.HandlerFunc{
		"unavailable": problemHandler(slug(api.Unavailable, 503, "Kafka is away"), "Retry-After", "7"),
		"too many":    problemHandler(slug(api.TooManyRequests, 429, "slower"), "Retry-After", "7"),
		"a proxy":     htmlHandler(502, "<h1>Bad Gateway</h1>"),
		"hung up":     hungUp,
	} {
		synctest.Test(t, func(t *testing.T) {
			answer, n := inOrder(passes, passes, stored("events/0/0"))
			g := gatewayOf(t, answer)
			began := time.Now()
			_, err := g.Publish(t.Context(), "", event("1"))
			took := time.Since(began)
			if err != nil || *n != 3 {
				t.Errorf("%s: %d requests, %v", name, *n, err)
			}
			if asked := strings.Contains(name, "too") || name == "unavailable"; asked != (took >= 14*time.Second) {
				t.Errorf("%s: it took %s", name, took)
			}
		})
	}
}

func TestWhatStaysIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p  api.Problem
		is error
	}{
		{slug(api.InvalidEvent, 400, "attribute time: is no time"), nil},
		{slug(api.Unauthenticated, 401, "no token"), nil},
		{slug(api.Reserved, 403, "type is ours"), nil},
		{slug(api.UnknownStream, 404, "no such"), broker.ErrNoStream},
		{slug(api.TooLarge, 413, "too large"), broker.ErrTooLarge},
		{slug(api.Internal, 500, "our fault"), nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.p.Attribute = "time"
			answer, n := inOrder(problemHandler(c.p))
			g := gatewayOf(t, answer)
			_, err := g.Publish(t.Context(), "", event("1"))
			var p *api.Problem
			if !errors.As(err, &p) || p.Status != c.p.Status || Status(err) != p.Status || p.Attribute != "time" || p.Detail != c.p.Detail || *n != 1 {
				t.Errorf("%d requests, %v", *n, err)
			}
			if want := "publish event 1: " + c.p.Detail; err.Error() != want {
				t.Errorf("%q, want %q", err, want)
			}
			if c.is != nil && !errors.Is(err, c.is) || errors.Is(err, broker.ErrInDoubt) {
				t.Errorf("%v is not %v", err, c.is)
			}
		})
	}
}

func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		doubt  bool
	}{
		"nothing was stored": {problemHandler(slug(api.Unavailable, 503, "Kafka is away")), false},
		"in doubt":           {problemHandler(slug(api.InDoubt, 503, "no answer")), true},
		"hung up":            {hungUp, true},
		"silent":             {neverAnswer, true},
		"silent in the end":  {inTheEnd(problemHandler(slug(api.Unavailable, 503, "Kafka is away")), neverAnswer), true},
		"no balancer knows":  {htmlHandler(504, "timeout"), true},
		"nobody behind it":   {htmlHandler(503, "no upstream"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewayOf(t, c.answer)
			began := time.Now()
			_, err := g.Publish(t.Context(), "", event("1"))
			if err == nil || errors.Is(err, broker.ErrInDoubt) != c.doubt || !strings.Contains(err.Error(), "tried for 2m0s") {
				t.Errorf("%s: %v", name, err)
			}
			if strings.Contains(err.Error(), "deadline") || name == "silent in the end" && !strings.Contains(err.Error(), "Kafka is away") {
				t.Errorf("%s: it says %v", name, err)
			}
			if took := time.Since(began); took > 2*time.Minute+time.Second || took < 75*time.Second {
				t.Errorf("%s: it took %s", name, took)
			}
		})
	}
}

// inTheEnd answers the first request with first, and all others with last.
func inTheEnd(first, last http.HandlerFunc) http.HandlerFunc {
	answer, _ := inOrder(first, last)
	return answer
}

func TestAStrangersPageIsNamedAndClipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, htmlHandler(403, "<html>\n\x1b[31mforbidden "+strings.Repeat("x", 5000)))
		_, err := g.Publish(t.Context(), "", event("1"))
		if err == nil || len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\x1b\n") || Status(err) != 403 || !strings.Contains(err.Error(), "403 Forbidden") || !strings.Contains(err.Error(), "<html> ·[31mforbidden") {
			t.Errorf("%v", err)
		}
	})
}

// Control characters in a problem must not reach the terminal.
func TestAProblemIsHarmless(t *testing.T) {
	t.Parallel()
	const order = "\x1b]0;owned\a"
	p := slug(api.UnknownStream, http.StatusNotFound, "no"+order+"\n\u009b2J")
	p.Streams, p.Attribute = []string{"a" + order}, order
	for what, answer := range map[string]http.HandlerFunc{"a problem": problemHandler(p), "a place": stored("a\u009b2J/0/0")} {
		_, err := gatewayOf(t, answer).Publish(t.Context(), "", event("1"))
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\a\n\u009b") {
			t.Errorf("%s: %q", what, err)
		}
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer, n := inOrder(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
		g := gatewayOf(t, answer)
		_, err := g.Publish(t.Context(), "", event("1"))
		if err == nil || !strings.Contains(err.Error(), "to /elsewhere") || *n != 1 {
			t.Errorf("%d requests, %v", *n, err)
		}
	})
}

func TestInterruptedPublishEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, problemHandler(slug(api.Unavailable, 503, "away"), "Retry-After", "60"))
		ctx, cancel := contextFor(t, 3*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := g.Publish(ctx, "", event("1")); err == nil || time.Since(began) != 3*time.Second {
			t.Errorf("%s, %v", time.Since(began), err)
		}
	})
}

func TestNothingIsSentThatIsNoEvent(t *testing.T) {
	t.Parallel()
	g, err := open(Options{URL: "http://localhost:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Publish(t.Context(), "", &broker.View{ID: "1"}); err == nil {
		t.Error("an event without a source was sent")
	}
	if _, err := g.Publish(t.Context(), "../admin", event("1")); !errors.Is(err, broker.ErrNoStream) {
		t.Errorf("a stream that is a path: %v", err)
	}
}
