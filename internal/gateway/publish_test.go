package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
)

func TestEventsGoHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for path, want := range map[string]string{"/events": "messages", "/streams/scored": "scored"} {
		r := w.post(path, `{"text":"hello"}`, "ce-specversion", "1.0", "ce-type", "message", "ce-source", "/test", "ce-id", path,
			"ce-subject", "bot-1", "ce-colour", "%C3%BCber", "Content-Type", "application/json")
		at := strings.Split(r.Header.Get(api.HeaderPosition), "/")
		if r.StatusCode != http.StatusAccepted || len(at) != 3 || at[0] != want || at[2] != "0" {
			t.Fatalf("%s: %d %v %s", path, r.StatusCode, r.Header, r.body)
		}
		stored := w.storedEvents(want)
		if len(stored) != 1 {
			t.Fatalf("stored %v", stored)
		}
		v := stored[0]
		colour, _ := v.Attribute("colour")
		if v.ID != path || string(v.Data) != `{"text":"hello"}` || string(v.Key) != "bot-1" || colour != "über" || v.DataContentType != "application/json" {
			t.Errorf("stored %+v", v)
		}
	}
	if w.post("/events", "", eventHeaders("x")...); len(w.storedEvents(tidemill.StreamEvents)) != 1 {
		t.Error("a type that nobody claims lives on events")
	}
}

func TestRepeatsAreRecognised(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.post("/events", "a", eventHeaders("1")...)
	if first.StatusCode != http.StatusAccepted || first.Header.Get(api.HeaderRepeated) != "" {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	w.waitUntil("the repeat is recognised", func() bool {
		r := w.post("/events", "b", eventHeaders("1")...)
		return r.StatusCode == http.StatusAccepted && r.Header.Get(api.HeaderRepeated) == "true" && r.Header.Get(api.HeaderPosition) == ""
	})
	n := len(w.storedEvents(tidemill.StreamEvents))
	if w.post("/events", "c", eventHeaders("1")...); len(w.storedEvents(tidemill.StreamEvents)) != n {
		t.Error("a repeat was stored")
	}
	if r := w.post("/streams/messages", "d", eventHeaders("1")...); r.Header.Get(api.HeaderRepeated) != "" {
		t.Error("another stream's event was taken for a repeat")
	}
	for range 2 {
		if r := w.post("/streams/scored", "e", eventHeaders("1")...); r.Header.Get(api.HeaderRepeated) != "" {
			t.Error("a repeat was recognised where dedupe is off")
		}
	}
}

func batchEvent(id, typ, more string) string {
	return fmt.Sprintf(`{"specversion":"1.0","type":%q,"source":"/test","id":%q%s}`, typ, id, more)
}

func (w *world) batch(path string, events ...string) reply {
	w.Helper()
	return w.post(path, "["+strings.Join(events, ",")+"]", "Content-Type", batchType)
}

func answersOf(t *testing.T, r reply) []api.Answer {
	t.Helper()
	var a api.Answers // the problem of a refused batch has the same member
	if err := json.Unmarshal([]byte(r.body), &a); err != nil {
		t.Fatal(err)
	}
	return a.Events
}

func TestBatchAnswersForEach(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := w.batch("/events", batchEvent("1", "message", ""), batchEvent("2", "other", ""), batchEvent("1", "message", `,"data":2`))
	all := answersOf(t, r)
	if r.StatusCode != http.StatusAccepted || len(all) != 3 || r.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if all[0].Position == nil || all[0].Position.Stream != "messages" || all[1].Position == nil || all[1].Position.Stream != "events" {
		t.Errorf("positions: %s", r.body)
	}
	if a := all[2]; !a.Repeated || a.Position != nil || a.Status != http.StatusAccepted || a.ID != "1" {
		t.Errorf("the repeat within the batch: %+v", a)
	}
	if got := ids(w.storedEvents("messages")); !slices.Equal(got, []string{"1"}) {
		t.Errorf("stored %v", got)
	}
}

func TestBatchWithFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	r := w.batch("/events", batchEvent("1", "message", ""), batchEvent("2", "tidemill.scored", ""), `{"specversion":"1.0","id":"3"}`, `7`,
		batchEvent("5", "message", `,"data":"`+strings.Repeat("x", 1<<20)+`"`), batchEvent("6", "message", ""))
	p, all := problemOf(t, r), answersOf(t, r)
	if r.StatusCode != http.StatusBadRequest || p.Type != api.ProblemBase+api.Refused || len(all) != 6 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	var status []int
	for _, a := range all {
		status = append(status, a.Status)
		if (a.Problem == nil) != (a.Status == http.StatusAccepted) || a.Problem != nil && a.Problem.Status != a.Status {
			t.Errorf("answer %+v", a)
		}
	}
	if !slices.Equal(status, []int{202, 403, 400, 400, 413, 202}) || all[2].ID != "3" || all[1].Problem.Attribute != "type" {
		t.Errorf("statuses %v: %s", status, r.body)
	}
	if got := ids(w.storedEvents("messages")); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"1", "6"}) {
		t.Errorf("stored %v", got)
	}
}

func TestRefusedBatchStoresNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, body := range []string{`{}`, `[` + batchEvent("1", "message", "") + `,`, `[` + batchEvent("1", "message", "") + `]]`} {
		if r := w.post("/events", body, "Content-Type", batchType); r.StatusCode != http.StatusBadRequest || problemOf(t, r).Type != api.ProblemBase+api.InvalidEvent {
			t.Errorf("%s: %d %s", body, r.StatusCode, r.body)
		}
	}
	if got := w.storedEvents("messages"); len(got) != 0 {
		t.Errorf("stored %v", ids(got))
	}
}

func TestBatchKeepsAKeysOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var events, want []string
	for i := range 500 {
		id := fmt.Sprint(i)
		events = append(events, batchEvent(id, "message", fmt.Sprintf(`,"subject":"bot-%d"`, i%3)))
		if i%3 == 1 {
			want = append(want, id)
		}
	}
	if r := w.batch("/events", events...); r.StatusCode != http.StatusAccepted {
		t.Fatal(r.body)
	}
	var got []string
	for _, v := range w.storedEvents("messages") {
		if v.Subject == "bot-1" {
			got = append(got, v.ID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("stored %v", got)
	}
}

func TestAuthidIsTheCallers(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess())
	w := newWorld(t, func(o *Options) { o.Access = guard })
	w.post("/events", "", with(tokenHeader("all"), eventHeaders("1"))...)
	r := w.post("/events", "["+batchEvent("2", "test", "")+","+batchEvent("3", "test", `,"authid":"all"`)+","+batchEvent("4", "test", `,"authid":"root"`)+"]",
		with(tokenHeader("all"), []string{"Content-Type", batchType})...)
	if all := answersOf(t, r); len(all) != 3 || all[2].Status != http.StatusForbidden || all[2].Problem.Attribute != tidemill.AttrAuthID {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	stored := w.storedEvents(tidemill.StreamEvents)
	if len(stored) != 3 {
		t.Errorf("stored %v", ids(stored))
	}
	for _, v := range stored {
		if name, _ := v.Attribute(tidemill.AttrAuthID); name != "all" {
			t.Errorf("event %s has authid %q", v.ID, name)
		}
	}
}

func TestTheOpenDoorLeavesAuthidAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.post("/events", "", eventHeaders("1", "ce-authid", "someone")...)
	if v := w.storedEvents(tidemill.StreamEvents)[0]; must2(v.Attribute(tidemill.AttrAuthID)) != "someone" {
		t.Errorf("stored %+v", v)
	}
}

func must2(s string, _ bool) string { return s }

func TestTracesGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const own, requests = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w.post("/streams/scored", "", eventHeaders("1", "traceparent", requests, "tracestate", "a=1,b=2")...)
	w.post("/streams/scored", "", eventHeaders("2", "traceparent", requests, "ce-traceparent", own)...)
	w.post("/streams/scored", "", eventHeaders("3", "traceparent", "nonsense")...)
	w.post("/streams/scored", "", eventHeaders("4")...)
	want := map[string][2]string{"1": {requests, "a=1,b=2"}, "2": {own, ""}, "3": {}, "4": {}}
	for _, v := range w.storedEvents("scored") {
		got := [2]string{must2(v.Attribute("traceparent")), must2(v.Attribute("tracestate"))}
		if got != want[v.ID] {
			t.Errorf("event %s has %v", v.ID, got)
		}
	}
}

func TestAChangedConfigApplies(t *testing.T) {
	t.Parallel()
	changed := must1(config.Parse("test.yaml", []byte("version: 1\nstreams:\n  messages: {partitions: 4}\n  scored: {partitions: 2, types: [message]}\n")))(t)
	w := newWorld(t, nil)
	send := func(id string) string {
		r := w.post("/events", "", "ce-specversion", "1.0", "ce-type", "message", "ce-source", "/test", "ce-id", id)
		stream, _, _ := strings.Cut(r.Header.Get(api.HeaderPosition), "/")
		return stream
	}
	if got := send("1"); got != "messages" {
		t.Errorf("went to %s", got)
	}
	w.applyConfig(changed)
	if got := send("2"); got != "scored" {
		t.Errorf("went to %s", got)
	}
}

func TestAStreamThatKafkaLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.applyConfig(must1(config.Parse("test.yaml", []byte("version: 1\nstreams:\n  lost: {}\n")))(t))
	r := w.post("/streams/lost", "", eventHeaders("1")...)
	if p := problemOf(t, r); r.StatusCode != http.StatusServiceUnavailable || p.Type != api.ProblemBase+api.Unavailable || !strings.Contains(p.Detail, "lost") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

func TestEventsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.post("/events", "", eventHeaders("1")...)
	w.waitUntil("the repeat is recognised", func() bool { return w.post("/events", "", eventHeaders("1")...).Header.Get(api.HeaderRepeated) != "" })
	w.post("/events", "")
	w.post("/streams/messages", "", "ce-specversion", "1.0")
	w.waitUntil("nothing is under way", func() bool { return w.gateway.window.takenBytes() == 0 }) // the room is returned after the answer
	shown := w.do(http.MethodGet, "/metrics", "").body
	for _, line := range []string{
		`tidemill_gateway_events_total{outcome="repeated",stream="events"} 1`,
		`tidemill_gateway_events_total{outcome="refused",stream=""} 1`,
		`tidemill_gateway_events_total{outcome="refused",stream="messages"} 1`,
		`tidemill_gateway_requests_total{code="400",route="POST /events"} 1`,
		`tidemill_gateway_requests_total{code="400",route="POST /streams/{stream}"} 1`,
		`tidemill_gateway_unacked_bytes 0`,
	} {
		if !strings.Contains(shown, line+"\n") {
			t.Errorf("no line %s in\n%s", line, shown)
		}
	}
}

// While the disk is full, requests that store something are refused at once. Other requests are
// answered.
func TestAFullDiskIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	words := "disk full: 3 KiB are left in /data"
	var full atomic.Pointer[string]
	full.Store(&words)
	hasStore := withStore(t, &commitRecorder{})
	w := newWorld(t, func(o *Options) {
		hasStore(o)
		o.Full = func() string { return *full.Load() }
	})
	event := `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`
	for path, body := range map[string]string{"/events": event, "/streams/events": event, "/api/v1/runs": `{"recipe":"a","all":true}`,
		dataPath + "commits": `{"dataset":"d"}`, dataPath + "objects": "", dataPath + "object": ""} {
		wantProblem(t, w.post(path, body, "Content-Type", "application/cloudevents+json"), http.StatusInsufficientStorage, api.DiskFull, words)
	}
	if got := w.do(http.MethodGet, "/api/v1/streams", ""); got.StatusCode != http.StatusOK {
		t.Errorf("a list answers %d", got.StatusCode)
	}
	if p := w.gateway.storeFault("put an object", fmt.Errorf("put it: %w", store.ErrFull)); p.Status != http.StatusInsufficientStorage || !strings.Contains(p.Detail, store.ErrFull.Error()) {
		t.Errorf("a full disk of the store: %+v", p)
	}
	room := ""
	full.Store(&room)
	if got := w.post("/events", event, "Content-Type", "application/cloudevents+json"); got.StatusCode != http.StatusAccepted {
		t.Errorf("with room it answers %d: %s", got.StatusCode, got.body)
	}
}
