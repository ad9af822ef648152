package ledger_test

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// A read of several things gives the same result as several reads of one thing.
func TestSeveralAtOnceAreThoseOneByOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	l, s := w.open(), &script{}
	waits, waiting := s.runRequest("intent", "bot-1", "first", nil)
	w.add(l, waits)
	ends, ended := s.runRequest("intent", "bot-2", "second", nil)
	m := w.add(l, ends)
	m = w.add(l, s.start(m.Waiting, "gpu"))
	w.add(l, s.finish(m.Live, tidemill.OutcomeSucceeded))
	w.addModel(l, s.registered("intent/bot-2", ended, 2))
	runs, err := l.RunsOf(t.Context(), []string{waiting, "none", ended})
	must(t, err)
	if len(runs) != 2 || runs[waiting].State != tidemill.RunWaiting || runs[ended].State != tidemill.RunSucceeded {
		t.Errorf("the runs are %+v", runs)
	}
	links, err := l.LinksOf(t.Context(), []string{"event/second", "run/" + waiting, "run/" + ended})
	must(t, err)
	for from, to := range links {
		w.links(l, from, to...)
	}
	if len(links) != 3 || len(links["event/second"]) != 1 || len(links["run/"+ended]) != 1 {
		t.Errorf("the links are %v", links)
	}
	models, err := l.ModelsOf(t.Context(), []string{"intent/none", "intent/bot-2"})
	must(t, err)
	if len(models) != 2 || models["intent/none"].Next != 0 || models["intent/bot-2"].Last != 1 {
		t.Fatalf("the models are %+v", models)
	}
	versions, err := l.VersionsOf(t.Context(), []ledger.HeldBy{{Model: "intent/none", Held: fold.Held{Number: 1}}, {Model: "intent/bot-2", Held: models["intent/bot-2"].Versions[0]}})
	must(t, err)
	if len(versions) != 1 || versions[0].Model != "intent/bot-2" || versions[0].Run != ended {
		t.Errorf("the versions are %+v", versions)
	}
}
