package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// Each line is an event of its run's key, in order, and the newest is shown with the run.
func TestProgressIsPublished(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	body := `{"time":"2026-01-31T15:04:05Z","attempt":7,"step":1,"total":3,"metrics":{"loss":0.7}}` + "\n\n" + `{"step":2,"later":"field"}` + "\n"
	for range 2 { // twice, as if the answer was lost
		if r := a.post("/progress", body); r.StatusCode != http.StatusNoContent {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	events := m.storedEvents(tidemill.StreamProgress)
	if len(events) != 4 || events[0].ID != events[2].ID {
		t.Fatalf("%+v", events)
	}
	v, data := events[0], api.Progress{}
	m.must(json.Unmarshal(v.Data, &data))
	if v.Type != tidemill.TypeRunProgressed || v.Subject != "bot-1" || string(v.Key) != "fit/bot-1" || v.Source != "/tidemill/tidemill/gateway" ||
		v.Time != "2026-01-31T15:04:05Z" || v.DataSchema != tidemill.Schema(tidemill.TypeRunProgressed) {
		t.Errorf("%+v", v)
	}
	for name, want := range map[string]string{"recipe": "fit", "run": a.run, "attempt": "1", "causationid": "1", "causationsource": "/test", "correlationid": "chain-1"} {
		if got, _ := v.Attribute(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if data.Attempt != 1 || data.Step != 1 || data.Total != 3 || data.Metrics["loss"] != 0.7 {
		t.Errorf("%+v", data)
	}
	told := must1(m.ledger.Told(t.Context(), []string{a.run}))(t)
	m.must(json.Unmarshal(told[a.run], &data))
	if data.Step != 2 || !isRecent(data.Time) {
		t.Errorf("told %s", told[a.run])
	}
	if r := a.post("/progress", "\n"); r.StatusCode != http.StatusNoContent {
		t.Errorf("nothing to tell: %d %s", r.StatusCode, r.body)
	}
}

// An attempt that sends too much progress is refused for a moment, and the refused lines are
// not published.
func TestProgressIsBounded(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	refused, taken := 0, 0
	for i := range 20 {
		r := a.post("/progress", strings.Repeat(fmt.Sprintf(`{"step":%d}`+"\n", i), api.MaxSteps))
		switch r.StatusCode {
		case http.StatusNoContent:
			taken += api.MaxSteps
		case http.StatusTooManyRequests:
			refused++
			problemOf(t, r)
		default:
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	if n := len(m.storedEvents(tidemill.StreamProgress)); n != taken || refused == 0 {
		t.Errorf("%d are published of %d that were taken; %d were refused", n, taken, refused)
	}
}
