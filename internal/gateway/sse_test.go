package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/segmentio/kafka-go"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

func TestTailShowsWhatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.post("/events", "{}", eventHeaders("before")...)
	l := w.listen("events/events")
	for header, want := range map[string]string{"Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
		if got := l.res.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	l.firstID()
	w.post("/events", `{"a": "<&>"}`, eventHeaders("json", "Content-Type", "application/json", "ce-subject", "bot-1")...)
	line, id := l.next()
	if want := `"id":"json","source":"/test","type":"test","subject":"bot-1","datacontenttype":"application/json"`; !strings.Contains(string(line.Event), want) || !strings.HasSuffix(string(line.Event), `"data":{"a":"<&>"}}`) {
		t.Errorf("the event is %s", line.Event)
	}
	if id == "" || line.Offset < 0 || time.Since(line.Received) > time.Hour || line.Error != "" {
		t.Errorf("%s: %+v", id, line)
	}
	w.post("/events", "\x00\xff", eventHeaders("binary", "Content-Type", "application/octet-stream")...) // only now, because two events of one millisecond on two partitions come in any order
	line, _ = l.next()
	var e struct {
		Data []byte `json:"data_base64"`
	}
	if err := json.Unmarshal(line.Event, &e); err != nil || string(e.Data) != "\x00\xff" {
		t.Errorf("binary data became %s, %v", line.Event, err)
	}
}

// A record that is not an event is shown with its position, and does not end the tail.
func TestTailShowsWhatIsNoEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client := &kafka.Client{Addr: kafka.TCP(w.servers.Kafka()), Transport: &kafka.Transport{}}
	topic := must1(w.config.Names())(t).Topic("scored")
	waitFor(t, func() bool { // the client must first learn of the topic
		res, err := client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, Partition: 1, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Key: kafka.NewBytes([]byte("k")), Value: kafka.NewBytes([]byte("no event\n"))})})
		return err == nil && res.Error == nil
	})
	w.post("/streams/scored", "", eventHeaders("after")...)
	l := w.listen("scored/events?from=beginning")
	l.firstID()
	bad, id := l.next()
	other, _ := l.next()
	if again, _ := w.listen("scored/events", lastEventID, id).next(); !reflect.DeepEqual(again, other) {
		t.Errorf("behind the first comes %+v, want %+v", again, other)
	}
	if bad.Error == "" { // two records of one millisecond come in any order
		bad, other = other, bad
	}
	if bad.Error == "" || bad.Event != nil || string(bad.Key) != "k" || string(bad.Data) != "no event\n" || bad.Partition != 1 {
		t.Errorf("%+v", bad)
	}
	if idOf(t, other) != "after" {
		t.Errorf("beside it is %+v", other)
	}
}

func TestTailEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint("e", i))
		w.post("/events", "", eventHeaders(want[i], "ce-subject", fmt.Sprint("bot-", i))...)
	}
	l := w.listen("events/events?from=beginning&follow=false")
	got, end := l.allIDs()
	if !haveSame(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	l = w.listen("events/events?from=beginning&limit=7")
	some, at := l.allIDs()
	if len(some) != 7 {
		t.Errorf("with a limit: %v", some)
	}
	for name, on := range map[string]*tailListener{
		"header": w.listen("events/events?follow=false", lastEventID, at),
		"query":  w.listen("events/events?follow=false&from=beginning&lastEventId=" + at),
		"both":   w.listen("events/events?follow=false&lastEventId="+end, lastEventID, at),
	} {
		if rest, _ := on.allIDs(); !haveSame(append(rest, some...), want) {
			t.Errorf("%s: behind %v it goes on with %v", name, some, rest)
		}
	}
	if n := testutil.ToFloat64(w.gateway.tails.ended.WithLabelValues(tailEnded)); n != 5 {
		t.Errorf("%v tails have ended", n)
	}
	if n := testutil.ToFloat64(w.gateway.tails.events); n != 20+7+3*13 {
		t.Errorf("%v events were sent", n)
	}
}

// haveSame reports whether two lists have the same elements, because events of one millisecond on
// two partitions have no order.
func haveSame(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestTailRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for query, says := range map[string]string{
		"from=begining":                  `from: "begining" is not a position in a stream`,
		"from=-1x":                       "from: -1x is not a time ago",
		"from=2026-01-31T00:00:00+01:00": "+ is %2B",
		"follow=yes":                     `follow: "yes" is neither true nor false`,
		"limit=0":                        "limit: ", "limit=many": "limit: ",
		"lastEventId=abc":         "lastEventId: it is not an id",
		"form=beginning":          "form: there is no such parameter; known here: follow, from, lastEventId, limit, where",
		"where=branch%20==%20'x'": "where: column 9: expected a value, found =; equality is a single =",
		"where=LENGTH(type)":      "where: column 1: expected a condition, and this is a number",
		"from=end&from=17":        "from: it is given twice",
		"from=%zz":                "the query",
		"limit=1;follow=false":    "the query",
	} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/streams/events/events?"+query, ""), http.StatusBadRequest, api.InvalidRequest, says)
	}
	other := w.listen("facts/events").firstID()
	wantProblem(t, w.do(http.MethodGet, "/api/v1/streams/events/events", "", lastEventID, other), http.StatusBadRequest, api.InvalidRequest, "Last-Event-ID: it is not a place in stream events")
	p := wantProblem(t, w.do(http.MethodGet, "/api/v1/streams/evnts/events", ""), http.StatusNotFound, api.UnknownStream, `stream "evnts"`)
	if !slices.Contains(p.Streams, "events") || !slices.Contains(p.Streams, "messages") {
		t.Errorf("it names %v", p.Streams)
	}
}

// wantProblem checks which problem an answer is.
func wantProblem(t testing.TB, r reply, status int, slug, says string) api.Problem {
	t.Helper()
	p := problemOf(t, r)
	if p.Status != status || p.Type != api.ProblemBase+slug || !strings.Contains(p.Detail, says) {
		t.Errorf("the answer is %s %+v, want %d %s and %q", r.Status, p, status, slug, says)
	}
	return p
}

// waitFor repeats a check until it succeeds.
func waitFor(t testing.TB, yes func() bool) {
	t.Helper()
	tick, late := time.NewTicker(10*time.Millisecond), time.After(patienceOfTests)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("waited in vain")
		}
	}
}

func TestTailsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Tails = 2 })
	first := w.listen("events/events")
	w.listen("facts/events")
	r := w.do(http.MethodGet, "/api/v1/streams/events/events", "")
	wantProblem(t, r, http.StatusServiceUnavailable, api.Unavailable, "2 tails are open")
	first.close()
	waitFor(t, func() bool {
		l, err := w.tryListen("events/events")
		return err == nil && l.res.StatusCode == http.StatusOK
	})
	if n := testutil.ToFloat64(w.gateway.tails.ended.WithLabelValues(tailGone)); n != 1 {
		t.Errorf("%v readers have gone", n)
	}
}

// The time limits of ordinary answers do not end a tail. A silent tail shows signs of life.
func TestTailOutlivesTheLimitsOfRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Limits.ReadHeader, o.Limits.BodyGrace, o.Limits.Room, o.Limits.Ack = 2*time.Second, 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
		o.Limits.Write, o.Limits.Keepalive = 2*time.Second, 100*time.Millisecond
	})
	var l *tailListener
	waitFor(t, func() (ok bool) { // a busy machine may not open it within the limits
		l = must1(w.tryListen("events/events"))(t)
		return l.res.StatusCode == http.StatusOK
	})
	l.firstID()
	for range 4 { // about a second each
		if b, err := l.nextBlock(); err != nil || b.comment != "keepalive" || b.id != "" {
			t.Fatalf("%+v, %v", b, err)
		}
	}
	must1(w.producer.Publish(t.Context(), "events", &broker.View{ID: "1", Source: "/x", Type: "t"}))(t)
	if line, _ := l.next(); idOf(t, line) != "1" {
		t.Errorf("%+v", line)
	}
}

func TestTailEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	idle := w.listen("events/events")
	idle.firstID()
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	if err := w.gateway.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	if b, err := idle.nextBlock(); err == nil || err.Error() != "EOF" {
		t.Errorf("the tail goes on with %+v, %v", b, err)
	}
	if n := testutil.ToFloat64(w.gateway.tails.ended.WithLabelValues(tailClosing)); n != 1 {
		t.Errorf("%v tails were closed", n)
	}
}

// A caller with limited keys sees only their events. When it resumes, it starts after the
// events that it was not shown, too.
func TestTailShowsTheCallersKeys(t *testing.T) {
	t.Parallel()
	all, root := tokenLine("root", "a", "role: approve")
	some, crm := tokenLine("crm", "b", `role: read, keys: ["bot-1*"]`)
	w := newWorld(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+all+some)
		o.Limits.Keepalive = 50 * time.Millisecond
	})
	l := w.listen("events/events", crm...)
	began := l.firstID()
	w.post("/events", "", append(eventHeaders("other", "ce-subject", "bot-2"), root...)...)
	w.post("/events", "", append(eventHeaders("none"), root...)...)
	var moved string
	for moved == "" {
		b, err := l.nextBlock()
		if err != nil || b.data != "" {
			t.Fatalf("%+v, %v", b, err)
		}
		moved = b.id
	}
	for want, of := range map[string][]string{"his": {"ce-subject", "bot-11"}, "by its key": {"ce-partitionkey", "bot-1"}} {
		w.post("/events", "", append(eventHeaders(want, of...), root...)...)
		if line, _ := l.next(); idOf(t, line) != want {
			t.Errorf("he sees %s, want %s", idOf(t, line), want)
		}
	}
	whole := append([]string{lastEventID, began}, root...)
	if got, _ := w.listen("events/events?follow=false", whole...).allIDs(); len(got) != 4 {
		t.Errorf("who may see all sees %v", got)
	}
	whole[1] = moved
	if got, _ := w.listen("events/events?follow=false", whole...).allIDs(); slices.Contains(got, "other") && slices.Contains(got, "none") {
		t.Errorf("the sign of life did not tell what was passed over: %v", got)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/streams/events/events", ""), http.StatusUnauthorized, api.Unauthenticated, "")
}

// An event may have a partitionkey and a subject. With a limit of keys each must match, as for a publisher.
func TestTailShowsEventsWhoseKeysAllMatch(t *testing.T) {
	t.Parallel()
	all, root := tokenLine("root", "a", "role: approve")
	some, crm := tokenLine("crm", "b", `role: read, keys: ["bot-1*"]`)
	w := newWorld(t, func(o *Options) { o.Access = openGuard(t, "version: 1\ntokens:\n"+all+some) })
	for id, keys := range map[string][2]string{"both": {"bot-11", "bot-12"}, "its subject": {"bot-11", "bot-2"}, "its partitionkey": {"bot-2", "bot-11"}} {
		w.post("/events", "", append(eventHeaders(id, "ce-subject", keys[0], "ce-partitionkey", keys[1]), root...)...)
	}
	if got, _ := w.listen("events/events?from=beginning&follow=false", root...).allIDs(); len(got) != 3 {
		t.Errorf("a reader of all keys sees %v", got)
	}
	if got, _ := w.listen("events/events?from=beginning&follow=false", crm...).allIDs(); !slices.Equal(got, []string{"both"}) {
		t.Errorf("a reader of some keys sees %v", got)
	}
}
