package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// tailScript answers a tail's calls in order, and repeats the last answer.
type tailScript struct {
	t     *testing.T
	turns []func(w http.ResponseWriter, r *http.Request)
	calls []*http.Request
}

func (s *tailScript) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := min(len(s.calls), len(s.turns)-1)
	s.calls = append(s.calls, r)
	s.turns[at](w, r)
}

// sseHandler sends a text as server-sent events. Then it ends, or waits for the end of the request
// if stay is set.
func sseHandler(text string, stay bool) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", eventStreamType+"; charset=utf-8")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		if stay {
			<-r.Context().Done()
		}
	}
}

// eventText returns events as the gateway sends them; their ids are numbers.
func eventText(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		body, _ := json.Marshal(api.Tailed{Partition: 1, Offset: int64(i), Received: time.Unix(int64(i), 0),
			Event: json.RawMessage(fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/x","type":"t"}`, i))})
		fmt.Fprintf(&b, "id: after-%d\ndata: %s\n\n", i, body)
	}
	return b.String()
}

// endEvent marks the end of a stream.
const endEvent = "event: end\ndata: {}\n\n"

func tailOf(t *testing.T, o TailOptions, turns ...func(http.ResponseWriter, *http.Request)) (*Tail, *tailScript, error) {
	t.Helper()
	s := &tailScript{t: t, turns: turns}
	g := gatewayOf(t, s.ServeHTTP)
	o.Stream = "events"
	r, err := g.Tail(t.Context(), o)
	if err == nil {
		t.Cleanup(r.Close)
	}
	return r, s, err
}

func readAllOf(t *testing.T, r *Tail) (all []follow.Event, err error) {
	t.Helper()
	for {
		batch, err := r.Next(t.Context())
		all = append(all, batch...)
		if err != nil {
			return all, err
		}
	}
}

func wantEvents(t *testing.T, got []follow.Event, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%d events, want %d", len(got), n)
	}
	for i, e := range got {
		if e.Offset != int64(i) || e.ID != fmt.Sprint(i) || e.Partition != 1 || e.Stream != "events" || !e.Received.Equal(time.Unix(int64(i), 0)) {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
}

func TestTailReadsToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s, err := tailOf(t, TailOptions{From: "beginning", ToEnd: true, Limit: 5000}, sseHandler("retry: 1000\n\n"+eventText(0, 3000)+": keepalive\n\n"+endEvent, false))
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAllOf(t, r)
		wantEvents(t, all, 3000)
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if q := s.calls[0].URL; q.Path != "/base/api/v1/streams/events/events" || q.RawQuery != "follow=false&from=beginning&limit=5000" {
			t.Errorf("it asked for %s", q)
		}
	})
}

// After any break, the tail continues after the last complete event.
func TestTailGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		half := eventText(5, 6)
		var told []string
		r, s, err := tailOf(t, TailOptions{From: "end", Away: func(err error) { told = append(told, fmt.Sprint(err)) }},
			sseHandler("id: start\n\n", false), // break before the first event
			sseHandler(eventText(0, 2), false),
			sseHandler(eventText(2, 5)+half[:len(half)-2], false), // break in the middle of an event
			hungUp,
			told503(),
			told503(),
			sseHandler(eventText(5, 8)+endEvent, false))
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAllOf(t, r)
		wantEvents(t, all, 8)
		if !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		for i, want := range []string{"", "start", "after-1", "after-4", "after-4", "after-4", "after-4"} {
			if got := s.calls[i].Header.Get("Last-Event-ID"); got != want {
				t.Errorf("call %d has the id %q, want %q", i, got, want)
			}
		}
		if len(told) != 2 || told[1] != "<nil>" {
			t.Errorf("it was said that %q", told)
		}
	})
}

func told503() func(http.ResponseWriter, *http.Request) {
	return problemHandler(slug(api.Unavailable, 503, "draining"), "Retry-After", "1")
}

func TestTailWaitsForAGatewayThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := []func(http.ResponseWriter, *http.Request){sseHandler("", false)} // one successful connection
		for range 200 {
			turns = append(turns, told503())
		}
		r, _, err := tailOf(t, TailOptions{}, append(turns, sseHandler(eventText(0, 1)+endEvent, false))...)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		all, err := readAllOf(t, r)
		wantEvents(t, all, 1)
		if took := time.Since(began); !errors.Is(err, io.EOF) || took < 5*time.Minute || took > 20*time.Minute {
			t.Errorf("%s, %v", took, err)
		}
	})
}

// A dead connection is noticed by its silence.
func TestTailNoticesSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		alive := func(w http.ResponseWriter, r *http.Request) {
			sseHandler(eventText(0, 1), false)(w, r)
			for range 20 {
				time.Sleep(15 * time.Second)
				_, _ = io.WriteString(w, ": keepalive\n\n")
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		}
		r, s, err := tailOf(t, TailOptions{}, alive, sseHandler(eventText(1, 2)+endEvent, false))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		all, _ := readAllOf(t, r)
		wantEvents(t, all, 2)
		if took := time.Since(began); took < 5*time.Minute+maxSilence || took > 6*time.Minute {
			t.Errorf("%s, %d calls", took, len(s.calls))
		}
	})
}

func TestTailEndsWhereGoingOnIsInVain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		turn func(http.ResponseWriter, *http.Request)
		says string
	}{
		"gone":     {problemHandler(slug(api.UnknownStream, 404, "no such stream")), "tail stream events: no such stream"},
		"no token": {problemHandler(slug(api.Unauthenticated, 401, "the token has expired")), "the token has expired"},
		"a page":   {htmlHandler(200, "<html>hello"), "is it one? The answer: <html>hello"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _, err := tailOf(t, TailOptions{}, c.turn)
			if err == nil {
				_, err = readAllOf(t, r)
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			r, _, err = tailOf(t, TailOptions{}, sseHandler(eventText(0, 1), false), c.turn)
			if err != nil {
				t.Fatal(err)
			}
			all, err := readAllOf(t, r)
			wantEvents(t, all, 1)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, later: %v", name, err)
			}
		})
	}
}

func TestTailShowsWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body, _ := json.Marshal(api.Tailed{Partition: 2, Offset: 9, Error: "attribute id: is missing", Key: []byte("k"), Data: []byte("printer?")})
		r, _, err := tailOf(t, TailOptions{}, sseHandler(fmt.Sprintf("id: 1\ndata: %s\n\ndata: {\"offset\": 10, \"event\": {\"id\": \"1\"}}\n\n", body)+endEvent, false))
		if err != nil {
			t.Fatal(err)
		}
		all, _ := readAllOf(t, r)
		if len(all) != 2 || all[0].Err == nil || all[0].Err.Error() != "attribute id: is missing" || string(all[0].Key) != "k" || string(all[0].Data) != "printer?" || all[0].Offset != 9 || all[1].Err == nil {
			t.Errorf("%+v", all)
		}
	})
}

// An unreadable message is reported, and the events after it arrive.
func TestTailGoesOnBehindWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct {
		partition int32
		offset    int64
	}{
		`{`:                                     {unknownValue, unknownValue},
		`"\u001b[2J"`:                           {unknownValue, unknownValue},
		`{"partition":1,"offset":9,"event":1}`:  {1, 9},
		`{"partition":1,"offset":9,"error":1}`:  {1, 9},
		`{"partition":"x","offset":9}`:          {unknownValue, 9},
		`{"partition":3,"offset":7,"key":"%%"}`: {3, 7},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, s, err := tailOf(t, TailOptions{}, sseHandler("id: bad\ndata: "+in+"\n\n"+eventText(0, 2)+endEvent, false))
			if err != nil {
				t.Fatal(err)
			}
			all, err := readAllOf(t, r)
			if !errors.Is(err, io.EOF) || len(s.calls) != 1 || len(all) != 3 {
				t.Fatalf("%s: %d events in %d calls, %v", in, len(all), len(s.calls), err)
			}
			if bad := all[0]; bad.Err == nil || bad.Partition != want.partition || bad.Offset != want.offset || bad.Stream != "events" || bad.Received.IsZero() {
				t.Errorf("%s: %+v", in, bad)
			}
			wantEvents(t, all[1:], 2)
		})
	}
}

// A requested pause is limited.
func TestTailComesBackSoon(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string]func(http.ResponseWriter, *http.Request){
		"retry":       sseHandler("retry: 2147483647\n\n", false),
		"Retry-After": problemHandler(slug(api.Unavailable, 503, "draining"), "Retry-After", "65535"),
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _, err := tailOf(t, TailOptions{}, sseHandler("", false), turn, sseHandler(eventText(0, 1)+endEvent, false))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			all, _ := readAllOf(t, r)
			wantEvents(t, all, 1)
			if took := time.Since(began); took > 2*longestAsked {
				t.Errorf("%s: it came back after %s", name, took)
			}
		})
	}
}

func TestTailAsksForNoMoreThanIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s, err := tailOf(t, TailOptions{Limit: 5}, sseHandler(eventText(0, 3), false), sseHandler(eventText(3, 10), true))
		if err != nil {
			t.Fatal(err)
		}
		all, err := readAllOf(t, r)
		wantEvents(t, all, 5)
		if got := s.calls[1].URL.Query().Get("limit"); got != "2" || !errors.Is(err, io.EOF) {
			t.Errorf("it asked for %s more; %v", got, err)
		}
	})
}

// The gateway's ids include filtered events, so a call after a break does not start again at the
// last wanted event.
func TestTailComesBackBehindWhatIsNotWanted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const where = "subject LIKE 'bot-%' AND n > 1"
		r, s, err := tailOf(t, TailOptions{Where: where}, sseHandler(eventText(0, 3)+": keepalive\nid: behind-many\n\n", false), sseHandler(eventText(9, 10)+endEvent, false))
		if err != nil {
			t.Fatal(err)
		}
		all, _ := readAllOf(t, r)
		if len(all) != 4 {
			t.Errorf("%d events, want 4", len(all))
		}
		for i, last := range []string{"", "behind-many"} {
			if c := s.calls[i]; c.URL.Query().Get("where") != where || c.Header.Get("Last-Event-ID") != last {
				t.Errorf("call %d asks for %s behind %q", i, c.URL.RawQuery, c.Header.Get("Last-Event-ID"))
			}
		}
	})
}

func TestTailIsClosedAndInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, err := tailOf(t, TailOptions{}, sseHandler(eventText(0, 5000), true))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the sender waits for room in the queue
		r.Close()
		ctx, cancel := contextFor(t, time.Second)
		defer cancel()
		for err == nil {
			_, err = r.Next(ctx)
		}
		if !errors.Is(err, broker.ErrClosed) {
			t.Error(err)
		}
		r, _, err = tailOf(t, TailOptions{}, sseHandler("", true))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(ctx); err != ctx.Err() || err == nil {
			t.Errorf("interrupted: %v", err)
		}
	})
}

// A failing read returns soon, with the gateway's message and without ErrInDoubt.
func TestReadingGivesUpSoon(t *testing.T) {
	t.Parallel()
	away := problemHandler(slug(api.Unavailable, 503, "Kafka is away"))
	slow := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(6 * time.Second):
			away(w, r)
		case <-r.Context().Done():
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"at once":  {away, "Kafka is away (tried for 10s)"},
		"slowly":   {slow, "Kafka is away (tried for 10s)"},
		"never":    {neverAnswer, "the gateway does not answer (tried for 10s)"},
		"in doubt": {problemHandler(slug(api.InDoubt, 503, "who knows")), "who knows (tried for 10s)"},
		"a proxy":  {htmlHandler(502, "<h1>Bad Gateway"), "The answer: <h1>Bad Gateway (tried for 10s)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewayOf(t, c.answer)
			for what, read := range map[string]func() error{
				"list the streams: ": func() error { _, err := g.Streams(t.Context()); return err },
				"tail stream events: ": func() error {
					_, err := g.Tail(t.Context(), TailOptions{Stream: "events"})
					return err
				},
			} {
				began := time.Now()
				err := read()
				if err == nil || !strings.HasPrefix(err.Error(), what) || !strings.HasSuffix(err.Error(), c.says) || strings.Contains(err.Error(), "outcome unknown") {
					t.Errorf("%s, %s%v", name, what, err)
				}
				if took := time.Since(began); took > readWithin+time.Second {
					t.Errorf("%s, %sit took %s", name, what, took)
				}
				if g.Trouble() == nil {
					t.Errorf("%s, %sthere is no trouble", name, what)
				}
			}
		})
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"streams": [{"name": "events", "records": 7}]}`: "",
		`{"streams": []}`: "", `{}`: "is it one?", `<html>`: "is it one?",
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewayOf(t, htmlHandler(200, body))
			all, err := g.Streams(t.Context())
			if want == "" && (err != nil || strings.Contains(body, "name") != (len(all) == 1)) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %+v, %v", body, all, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOf(t, problemHandler(slug(api.Forbidden, 403, "the role read is missing")))
		if _, err := g.Streams(t.Context()); err == nil || err.Error() != "list the streams: the role read is missing" {
			t.Error(err)
		}
	})
}
