package remote

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// The list has the newest truth of each answer, and counts those that are asked for.
func TestOutcomesAreListed(t *testing.T) {
	t.Parallel()
	l := outcomeList{scorer: "frauds", limit: 50}
	book := outcomeBook{at: map[outcomeKey]*tidemill.OutcomeData{}}
	take := func(typ string, d tidemill.OutcomeData) {
		d.Model, d.Answered = "fraud/"+d.Key, time.Date(2026, 11, 1, 12, 0, 0, 0, time.Local)
		e := follow.Event{}
		e.View.Type, e.View.Data = typ, must(json.Marshal(d))(t)
		l.take(&book, &e)
	}
	take(tidemill.TypeOutcome, tidemill.OutcomeData{Scorer: "frauds", Key: "a", Version: 2, Place: "payments/0/1", Label: "fraud", Score: 0.75, Truth: "legit", Basis: tidemill.OutcomeAssumed, Revision: 1})
	take(tidemill.TypeOutcome, tidemill.OutcomeData{Scorer: "frauds", Key: "b", Version: 3, Place: "payments/0/2", Label: "legit", Score: 1, Truth: "legit", Basis: tidemill.OutcomeLabelled, Revision: 1})
	take(tidemill.TypeOutcome, tidemill.OutcomeData{Scorer: "other", Key: "b", Place: "payments/0/2", Label: "x", Truth: "y", Revision: 1})
	take(tidemill.TypeOutcomeCorrected, tidemill.OutcomeData{Scorer: "frauds", Key: "b", Version: 3, Place: "payments/0/2", Label: "legit", Score: 1, Truth: "fraud\x1b", Before: "legit", Basis: tidemill.OutcomeSaid, Revision: 2})
	take(tidemill.TypeOutcome, tidemill.OutcomeData{Scorer: "frauds", Key: "a", Version: 2, Place: "payments/0/3", Label: "fraud", Score: 0.9, Truth: "fraud", Basis: tidemill.OutcomeLabelled, Revision: 1})
	for _, data := range []string{`{"version":"first"}`, "no JSON"} { // by another client of Kafka
		e := follow.Event{}
		e.View.ID, e.View.Type, e.View.Data = "odd", tidemill.TypeOutcome, []byte(data)
		l.take(&book, &e)
	}
	if book.skipped != 2 || !strings.HasPrefix(book.why, "odd: ") || !strings.Contains(book.why, "version") {
		t.Errorf("%d skipped: %s", book.skipped, book.why)
	}
	bad := outcomeBook{at: map[outcomeKey]*tidemill.OutcomeData{}}
	for _, e := range []follow.Event{{Stream: "outcomes", Partition: 3, Offset: 17, Err: errors.New("it has no id")}, {View: broker.View{ID: "a", Type: "order"}}, {View: broker.View{ID: "b", Type: tidemill.TypeOutcome, Data: []byte("{}")}}} {
		l.take(&bad, &e)
	}
	if bad.skipped != 3 || bad.why != "outcomes/3/17: it has no id" || len(bad.all) > 0 {
		t.Errorf("%d skipped: %s; counted: %+v", bad.skipped, bad.why, bad.all)
	}
	var out strings.Builder
	if err := book.tell(&out, &out, &l); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{"EVENT KEY VERSION ANSWER TRUTH FROM ANSWERED", "payments/0/1 a fraud/a@2 fraud 0.750 legit no label 2026-11-01 12:00:00",
		`payments/0/2 b fraud/b@3 legit 1.000 fraud· person, was legit 2026-11-01 12:00:00`, "payments/0/3 a fraud/a@2 fraud 0.900 fraud label 2026-11-01 12:00:00", "", "1 of 3 answers right (33.3 %)"} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	l.wrong, l.limit = true, 1
	if got := book.shown(&l); len(got) != 1 || got[0].Place != "payments/0/2" {
		t.Errorf("the newest wrong answer: %+v", got)
	}
}

// Without --scorer, the only scorer that may have answered is meant.
func TestTheScorerOfALabel(t *testing.T) {
	t.Parallel()
	labels := &api.ScorerLabels{}
	all := []api.Scorer{{Name: "a", From: "messages", Labels: labels}, {Name: "b", From: "payments", Labels: labels}, {Name: "c", From: "payments"}}
	for event, want := range map[string]string{"messages/3/17": "a", "payments/0/1": "b", "order-1": "", "clicks/0/1": ""} {
		if got, err := labelledScorer(all, event); got != want || (err == nil) != (want != "") {
			t.Errorf("%s is of %q, %v, want %q", event, got, err, want)
		}
	}
	for _, id := range []string{"order-1", "order/5/17"} { // the second is no place, because no scorer reads a stream order
		if got, err := labelledScorer(all[1:], id); got != "b" {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
