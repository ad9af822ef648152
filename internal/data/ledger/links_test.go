package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

func (w *world) addModel(l *ledger.Ledger, v *broker.View) *fold.Model {
	w.t.Helper()
	_, m, err := l.AppendModel(w.t.Context(), v)
	must(w.t, err)
	return m
}

// links checks the links of a thing, the newest first.
func (w *world) links(l *ledger.Ledger, from string, want ...string) {
	w.t.Helper()
	got, err := l.Links(w.t.Context(), from)
	must(w.t, err)
	if !slices.Equal(got, want) {
		w.t.Errorf("%s has come to %v, want %v", from, got, want)
	}
}

func (s *script) registered(model, run string, keep int) *broker.View {
	return s.ofModel(tidemill.TypeModelRegistered, model, run, tidemill.ModelRegistered{Artifact: "made", Judge: tidemill.Judge{Keep: keep},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: "bot-1", Began: time.Now().UTC(), Mark: tidemill.Mark{Partition: 1, Offset: int64(s.n)}}})
}

// Links lead from the event to the run and the version, until the run is forgotten.
func TestLinksLeadFromTheEventToTheVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	v, run := s.runRequest("intent", "bot-1", "an, event", nil)
	w.add(l, v)
	w.links(l, "event/an, event", "run/"+run)
	second, _ := s.runRequest("intent", "bot-1", "second", nil)
	w.add(l, second)
	newest, _ := s.runRequest("intent", "bot-1", "newest", nil)
	m := w.add(l, newest)
	w.links(l, "event/second")
	w.links(l, "event/newest", "run/"+run)
	commit := "commit/" + strings.Repeat("a", 64)
	w.links(l, commit)
	m = w.add(l, s.start(m.Waiting, "gpu"))
	w.links(l, commit, "run/"+run)
	w.add(l, s.finish(m.Live, tidemill.OutcomeSucceeded))
	w.addModel(l, s.registered("intent/bot-1", run, 2))
	w.links(l, "run/"+run, "model/intent/bot-1@1")
	w.addModel(l, s.ofModel(tidemill.TypeModelPromotionProposed, "intent/bot-1", run, // judged, because a version without a judgement is not dropped
		tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: run, Judgement: &tidemill.Judgement{Sentence: "refused"}}))
	for i := range 2 {
		w.addModel(l, s.registered("intent/bot-1", fmt.Sprint("later-", i), 2))
	}
	w.links(l, "run/"+run)
	w.links(l, "run/later-1", "model/intent/bot-1@3")
	w.add(l, s.view(tidemill.TypeRunForgotten, "intent", "bot-1", "", tidemill.RunForgotten{Cause: tidemill.Cause{Source: "/test", ID: "end"}}))
	for _, from := range []string{"event/an, event", "event/newest", commit, "run/none", "nothing", ""} {
		w.links(l, from)
	}
	w.checkSame(w.modelOf())
}

// A run is linked to the commit that it made on its dataset.
func TestLinksLeadFromTheRunToItsCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	l, s := w.open(), &script{}
	v, run := s.runRequest("clean", "bot-1", "c", nil)
	m := w.add(l, v)
	m = w.add(l, s.view(tidemill.TypeRunStarted, "clean", "bot-1", run, tidemill.RunStarted{Attempt: 1, Seen: m.Waiting.LastAsked(), Plan: plan("gpu", "made")}))
	w.add(l, s.finish(m.Live, tidemill.OutcomeSucceeded))
	w.links(l, "run/"+run)
	w.add(l, s.view(tidemill.TypeRunCommitted, "clean", "bot-1", run, tidemill.RunCommitted{Dataset: "made", Branch: "main", Commit: "c0ffee"}))
	w.links(l, "run/"+run, "commit/c0ffee")
}

// An event that led to very many runs is linked to the newest of them.
func TestLinksAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	s, runs := &script{}, make([]string, 300)
	w.publish(len(runs), func(i int) (v *broker.View) {
		v, runs[i] = s.runRequest("intent", fmt.Sprint("bot-", i), "tick", nil)
		runs[i] = "run/" + runs[i]
		return v
	})
	l := w.openWith(w.options().AtOnce(7))
	caughtUp(t, l)
	slices.Reverse(runs)
	w.links(l, "event/tick", runs[:256]...)
}
