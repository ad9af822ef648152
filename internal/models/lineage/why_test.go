package lineage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/lineage"
)

const bot = "intent/bot-42"

// stages is a pipeline: raw data, one run that cleans it, another that learns from it, and two
// versions of a model.
type stages struct {
	*world
	raw, clean, more api.Commit
	event            string // event that announced clean
	cleaning         *tidemill.Run
	first, second    *tidemill.Run
}

func newStages(t testing.TB) *stages {
	s := &stages{world: newWorld(t)}
	var told json.RawMessage
	s.raw, told = s.commit("raw/bot-42", "raw", "")
	s.cleaning = s.makeRun(runSpec{recipe: "clean", key: "bot-42", asked: []json.RawMessage{told}, inputs: []api.Commit{s.raw}, dataset: "bots/bot-42"})
	s.clean, told = s.commit("bots/bot-42", "clean", s.cleaning.ID)
	s.fact(tidemill.TypeRunCommitted, "bot-42", map[string]string{"recipe": "clean", "run": s.cleaning.ID}, tidemill.RunCommitted{Dataset: s.clean.Dataset, Branch: "main", Commit: s.clean.ID})
	s.event = eventName(s.world, told)
	s.first = s.makeRun(runSpec{recipe: "intent", key: "bot-42", asked: []json.RawMessage{told}, inputs: []api.Commit{s.clean}, model: bot})
	s.register(bot, s.first, []api.Commit{s.clean}, true)
	s.more, told = s.commit("bots/bot-42", "more", "")
	s.second = s.makeRun(runSpec{recipe: "intent", key: "bot-42", asked: []json.RawMessage{told}, inputs: []api.Commit{s.more}, model: bot})
	s.register(bot, s.second, []api.Commit{s.more}, true)
	return s
}

func eventName(w *world, e json.RawMessage) string {
	w.Helper()
	var c tidemill.Cause
	w.must(json.Unmarshal(e, &c))
	return "event/" + c.Source + "#" + c.ID
}

func nameOf(c api.Commit) string { return "commit/" + c.Dataset + "@" + c.ID }

// A version leads back through two runs to the raw data, and ahead to the version that replaced it.
func TestAVersionComesFromItsData(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	g := s.graphOf("model/" + bot + "@1")
	version, run, cleaning := "model/"+bot+"@1", "run/"+s.first.ID, "run/"+s.cleaning.ID
	g.checkEdge(run, api.EdgeMade, version)
	g.checkEdge(nameOf(s.clean), api.EdgeTaught, run)
	g.checkEdge("code/dir:"+strings.Repeat("3f2a", 16)+"@8c1f0a2b3c", api.EdgeCode, run)
	g.checkEdge("node/laptop", api.EdgeRan, run)
	g.checkEdge(s.event, api.EdgeAsked, run)
	g.checkEdge(nameOf(s.clean), api.EdgeTold, s.event)
	g.checkEdge(cleaning, api.EdgeMade, nameOf(s.clean))
	g.checkEdge(nameOf(s.raw), api.EdgeTaught, cleaning)
	g.checkEdge(version, api.EdgeReplaced, "model/"+bot+"@2")
	if g.Subject != version || g.Nodes[0].ID != version || g.has("run/"+s.second.ID) || len(g.Notes) != 0 {
		t.Errorf("it has\n%s", g)
	}
	n := g.node(version)
	if n.State != "was champion" || n.Said != "promoted: accuracy 0.91 is at least 0.85" || n.Says[0] != "accuracy 0.91" || n.Says[1] != "promoted by its gate" {
		t.Errorf("of the version it says\n%+v", n)
	}
	if n := g.node("code/dir:" + strings.Repeat("3f2a", 16) + "@8c1f0a2b3c"); n.Title != "code dir:3f2a3f2a3f2a" || n.Says[0] != "python train.py in /trainers/intent" {
		t.Errorf("of the code it says\n%+v", n)
	}
	if n := g.node(nameOf(s.clean)); n.Said != "put clean" || n.Facts["run"] != s.cleaning.ID {
		t.Errorf("of the commit it says\n%+v", n)
	}
	champion := s.graphOf("model/" + bot)
	champion.checkEdge(version, api.EdgeJudged, "model/"+bot+"@2")
	champion.checkEdge(nameOf(s.clean), api.EdgeFollowed, nameOf(s.more))
	if champion.Subject != "model/"+bot+"@2" || champion.node(champion.Subject).State != "champion" || champion.has("run/"+s.first.ID) {
		t.Errorf("without a number it tells of\n%s", champion)
	}
}

// A commit, the event that announced it and the run that cleaned it lead ahead to the version.
func TestDataLeadsOnToTheVersion(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	for _, of := range []string{nameOf(s.raw), "commit/raw/bot-42@main", "commit/" + s.raw.ID, "commit/raw/bot-42@" + s.raw.ID[:8], "run/" + s.cleaning.ID, "run/" + s.cleaning.ID[:8], nameOf(s.clean)} {
		g := s.graphOf(of)
		g.checkEdge("run/"+s.cleaning.ID, api.EdgeMade, nameOf(s.clean))
		g.checkEdge(nameOf(s.clean), api.EdgeTaught, "run/"+s.first.ID)
		g.checkEdge(nameOf(s.clean), api.EdgeTold, s.event)
		g.checkEdge(s.event, api.EdgeAsked, "run/"+s.first.ID)
		g.checkEdge("run/"+s.first.ID, api.EdgeMade, "model/"+bot+"@1")
	}
	_, id, _ := strings.Cut(s.event, "#")
	for _, of := range []string{s.event, "event/" + id} {
		g := s.graphOf(of)
		g.checkEdge(nameOf(s.clean), api.EdgeTold, s.event)
		g.checkEdge("run/"+s.cleaning.ID, api.EdgeMade, nameOf(s.clean))
		g.checkEdge("run/"+s.first.ID, api.EdgeMade, "model/"+bot+"@1")
		if n := g.node(s.event); n.Time == nil || n.Facts["type"] != "new-data" || n.Facts["subject"] != "bot-42" {
			t.Errorf("of the event it says\n%+v", n)
		}
	}
}

// Data of keys that the caller may not read is left out, with everything beyond it. A question
// about it gets the same answer as one about unknown data.
func TestOnlyWhatMayBeReadIsTold(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	base, told := s.commit("shared/base", "base", "")
	r := s.makeRun(runSpec{recipe: "intent", key: "bot-7", asked: []json.RawMessage{told}, inputs: []api.Commit{base}, model: "intent/bot-7"})
	s.register("intent/bot-7", r, []api.Commit{base}, false)
	s.mayRead = func(key string) bool { return key == "bot-7" }
	g := s.graphOf("model/intent/bot-7@1")
	g.checkEdge("run/"+r.ID, api.EdgeMade, "model/intent/bot-7@1")
	g.checkNote("one thing belongs to a key that you may not read: left out")
	if g.has(nameOf(base)) || g.node("model/intent/bot-7@1").State != "refused" || !strings.HasPrefix(g.node("model/intent/bot-7@1").Said, "refused: accuracy") {
		t.Errorf("it has\n%s", g)
	}
	for _, of := range []string{"model/" + bot, "run/" + s.first.ID, nameOf(s.clean), "commit/" + s.clean.ID, s.event, nameOf(base),
		"model/no", "model/intent/bot-7@9", "run/zzzzzzzz", "commit/no@main", "commit/" + strings.Repeat("a", 26), "event/no"} {
		_, err := lineage.Of(t.Context(), s.sources(), of)
		if !errors.Is(err, lineage.ErrUnknown) || !strings.Contains(err.Error(), "; ") {
			t.Errorf("%s: %v", of, err)
		}
	}
}

// The key of a commit is given by the recipes that name its dataset, not by the end of that name.
func TestCommitsOfKeysWithSlashes(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	s.config = must1(config.Parse("c.yaml", []byte("version: 1\nrecipes:\n  r: {when: {type: a}, inputs: {raw: 'bots/{key}'}, run: {dir: ., command: [c]}}\n")))(t)
	of, _ := s.commit("bots/eu/bot-7", "theirs", "")
	for key, may := range map[string]bool{"eu/bot-7": true, "bot-7": false} {
		s.mayRead = func(k string) bool { return k == key }
		for _, name := range []string{nameOf(of), "commit/bots/eu/bot-7@main"} {
			if _, err := lineage.Of(t.Context(), s.sources(), name); may && err != nil || !may && !errors.Is(err, lineage.ErrUnknown) {
				t.Errorf("%s, by who may read %s: %v", name, key, err)
			}
		}
	}
}

// A version and the log describe a run that the ledger has forgotten.
func TestAVersionOutlivesItsRun(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	for i := range fold.KeptRuns {
		e := s.world.event(tidemill.Cause{Source: "/crm", ID: fmt.Sprint("tick-", i)}, "tick", "bot-42", nil)
		s.makeRun(runSpec{recipe: "intent", key: "bot-42", asked: []json.RawMessage{e}, inputs: []api.Commit{s.more}, model: bot})
	}
	if _, err := s.ledger.Run(t.Context(), s.first.ID); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("the ledger still knows the run: %v", err)
	}
	for _, of := range []string{"model/" + bot + "@1", "run/" + s.first.ID} {
		g := s.graphOf(of)
		run := "run/" + s.first.ID
		g.checkEdge(run, api.EdgeMade, "model/"+bot+"@1")
		g.checkEdge(nameOf(s.clean), api.EdgeTaught, run)
		g.checkEdge(s.event, api.EdgeAsked, run)
		g.checkNote("no longer names run " + s.first.ID[:10])
		if n := g.node("code/dir:" + strings.Repeat("3f2a", 16) + "@8c1f0a2b3c"); n.Says[0] != "python train.py in /trainers/intent" {
			t.Errorf("the log was not asked what it ran: %+v", n)
		}
	}
}

// Of many events that asked for a run, the newest and the first are shown.
func TestManyAskedForARun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var asked []json.RawMessage
	for i := range 30 {
		asked = append(asked, w.event(tidemill.Cause{Source: "/crm", ID: fmt.Sprint("e-", i)}, "order", "bot-1", map[string]string{"causationid": "click", "causationsource": "/shop#1", "authid": "ada"}))
	}
	r := w.makeRun(runSpec{recipe: "intent", key: "bot-1", asked: asked})
	for _, id := range []string{"e-0", "e-29"} {
		g := w.graphOf("event/" + id)
		g.checkEdge("event//crm#"+id, api.EdgeAsked, "run/"+r.ID)
		g.checkEdge("event//shop%231#click", api.EdgeCaused, "event//crm#"+id)
	}
	g := w.graphOf("run/" + r.ID)
	g.checkEdge("event//crm#e-29", api.EdgeAsked, "run/"+r.ID)
	g.checkEdge("event//crm#e-0", api.EdgeAsked, "run/"+r.ID)
	g.checkEdge("event//shop%231#click", api.EdgeCaused, "event//crm#e-29")
	g.checkNote("24 events more are causes of run " + r.ID[:10])
	if g.has("event//crm#e-5") || g.node("event//crm#e-29").Says[0] != "by ada" {
		t.Errorf("it has\n%s", g)
	}
	if _, err := lineage.Of(t.Context(), w.sources(), "event//other#e-29"); !errors.Is(err, lineage.ErrUnknown) {
		t.Errorf("an event of another source: %v", err)
	}
}

// A commit that is gone from the store is shown as its run knows it.
func TestWithoutAStoreCommitsAreNamed(t *testing.T) {
	t.Parallel()
	s := newStages(t)
	s.store = must1(store.Open(t.Context(), store.Options{URL: t.TempDir()}))(t)
	t.Cleanup(func() { _ = s.store.Close() })
	g := s.graphOf("model/" + bot + "@1")
	g.checkEdge(nameOf(s.clean), api.EdgeTaught, "run/"+s.first.ID)
	g.checkNote("is no longer in the store")
	sources := s.sources()
	sources.Store = nil
	without := must1(lineage.Of(t.Context(), sources, "model/"+bot+"@1"))(t)
	if g := (&graph{s.world, without}); g.node(nameOf(s.clean)).Facts["branch"] != "main" {
		t.Errorf("it has\n%s", g)
	}
}

// An event from outside may name any commit, even by the beginning of several ids. Such an event
// names no commit, and the answers about other things do not fail.
func TestAnEventMayNameNoCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin, seen := "", map[string]bool{}
	for i := 0; begin == ""; i++ {
		c, _ := w.commit("bots/bot-42", fmt.Sprint("text ", i), "")
		if seen[c.ID[:1]] {
			begin = c.ID[:1]
		}
		seen[c.ID[:1]] = true
	}
	told := w.event(tidemill.Cause{Source: "/crm", ID: "e-1"}, tidemill.TypeNewData, "bot-42", map[string]string{"dataset": "bots/bot-42", "commit": begin})
	r := w.makeRun(runSpec{recipe: "intent", key: "bot-42", asked: []json.RawMessage{told}, model: bot})
	g := w.graphOf("run/" + r.ID)
	g.checkEdge(eventName(w, told), api.EdgeAsked, "run/"+r.ID)
	g.checkEdge("commit/bots/bot-42@"+begin, api.EdgeTold, eventName(w, told))
	g.checkNote("is itself no longer known")
}
