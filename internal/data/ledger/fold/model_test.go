package fold_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// modelResult is the result of folding a model's facts.
type modelResult struct {
	Verdicts []string
	Records  []any
	Model    *fold.Model
}

// Each testdata/models/NAME.ndjson has the facts of a model, and folds to NAME.json for ever.
// To add a case, add the facts, run with -update, and check the new file.
func TestModelsFoldForEver(t *testing.T) {
	streams, err := filepath.Glob("testdata/models/*.ndjson")
	if err != nil || len(streams) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, stream := range streams {
		t.Run(filepath.Base(stream), func(t *testing.T) {
			got, err := json.MarshalIndent(tellModel(readModelFacts(t, stream)), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(stream, ".ndjson") + ".json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("folds to\n%s\nnot to\n%s", got, want)
			}
		})
	}
}

func readModelFacts(t *testing.T, stream string) (all []fold.Fact) {
	t.Helper()
	f, err := os.Open(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l struct {
			factLine
			ID string
		}
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		all = append(all, fold.Fact{Partition: 5, Offset: int64(len(all)), ID: l.ID, Type: l.Type, Recipe: l.Recipe, Model: "intent/bot-42",
			Key: l.Key, Run: l.Run, By: l.By, At: l.At, Data: l.Data})
	}
	return all
}

func tellModel(facts []fold.Fact) modelResult {
	out := modelResult{Model: &fold.Model{}}
	for _, f := range facts {
		v := out.Model.Apply(f)
		said := string(v.Result)
		if v.Reason != "" {
			said += ": " + v.Reason
		}
		if len(v.Dropped) > 0 {
			said += fmt.Sprint("; drops ", v.Dropped)
		}
		out.Verdicts = append(out.Verdicts, said)
		if v.Registered != nil {
			out.Records = append(out.Records, v.Registered)
		}
		if v.Judgement != nil {
			out.Records = append(out.Records, v.Judgement)
		}
	}
	return out
}

// stage folds facts of a model, with short methods to write them.
type stage struct {
	*testing.T
	m      fold.Model
	offset int64
	now    time.Time
	keep   int
}

func newStage(t *testing.T) *stage {
	return &stage{T: t, now: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC), keep: 10}
}

func (s *stage) fold(typ, run, by string, data any) fold.ModelVerdict {
	s.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		s.Fatal(err)
	}
	s.now = s.now.Add(time.Second)
	v := s.m.Apply(fold.Fact{Partition: 5, Offset: s.offset, ID: fmt.Sprint("f", s.offset), Type: typ, Recipe: "intent", Model: "intent/k", Key: "k",
		Run: run, By: by, At: s.now, Data: text})
	s.offset++
	return v
}

func (s *stage) is(v fold.ModelVerdict, want fold.VerdictResult) {
	s.Helper()
	if v.Result != want || (v.Reason != "") != (want == fold.Refused) {
		s.Fatalf("it is %s (%s), want %s", v.Result, v.Reason, want)
	}
}

// register registers the version of a run that began at an offset.
func (s *stage) register(run string, began int64) fold.ModelVerdict {
	s.Helper()
	return s.fold(tidemill.TypeModelRegistered, run, "", tidemill.ModelRegistered{Artifact: "a-" + run, Judge: tidemill.Judge{Keep: s.keep},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: "k", Began: time.Unix(began, 0), Mark: tidemill.Mark{Partition: 7, Offset: began}}})
}

func (s *stage) judge(number int, passed bool, hold string) fold.ModelVerdict {
	s.Helper()
	run := ""
	if h := s.m.Find(number); h != nil {
		run = h.Run
	}
	return s.fold(tidemill.TypeModelPromotionProposed, run, "", tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: number, Run: run,
		Basis: s.m.Champion, Turn: s.m.Turn, Hold: hold, Judgement: &tidemill.Judgement{Passed: passed, Sentence: "so it is"}})
}

func (s *stage) wish(a tidemill.Action, number int) fold.ModelVerdict {
	s.Helper()
	return s.fold(tidemill.TypeModelPromotionProposed, "", "ada", tidemill.PromotionProposed{Action: a, Version: number, Basis: s.m.Champion, Turn: s.m.Turn, Reason: "because"})
}

// registerAll registers versions, numbered from 1, and promotes each.
func (s *stage) registerAll(runs ...string) {
	s.Helper()
	for i, run := range runs {
		s.is(s.register(run, int64(10*i+10)), fold.Accepted)
		s.is(s.judge(s.m.Last, true, ""), fold.Accepted)
	}
}

func (s *stage) champion(version, previous int) {
	s.Helper()
	if s.m.Champion != version || s.m.Previous != previous {
		s.Fatalf("the champion is %d, before it was %d", s.m.Champion, s.m.Previous)
	}
}

func (s *stage) owes(types ...string) {
	s.Helper()
	var all []string
	for _, o := range s.m.Owed {
		all = append(all, o.Type)
	}
	if !slices.Equal(all, types) {
		s.Fatalf("it owes %v", all)
	}
}

func TestAVersionThatPassesIsChampion(t *testing.T) {
	s := newStage(t)
	v := s.register("r1", 10)
	s.is(v, fold.Accepted)
	if v.Registered == nil || v.Registered.Number != 1 || v.Registered.Artifact != "a-r1" || v.Registered.Run != "r1" {
		t.Fatalf("%+v", v.Registered)
	}
	s.is(s.register("r1", 10), fold.Known)
	s.champion(0, 0)
	v = s.judge(1, true, "")
	s.is(v, fold.Accepted)
	if v.Judged != 1 || v.Judgement == nil {
		t.Fatalf("%+v", v)
	}
	s.champion(1, 0)
	s.owes(tidemill.TypeModelPromoted)
	s.is(s.judge(1, true, ""), fold.Known) // the version is judged already, also in the new turn
	s.is(s.fold(tidemill.TypeModelPromoted, "", "", tidemill.ModelAnnounced{Proposal: "f2"}), fold.Accepted)
	s.is(s.fold(tidemill.TypeModelPromoted, "", "", tidemill.ModelAnnounced{Proposal: "f2"}), fold.Known)
	s.owes()
}

func TestARefusedVersionStaysAside(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1")
	s.is(s.register("r2", 20), fold.Accepted)
	s.is(s.judge(2, false, ""), fold.Accepted)
	s.champion(1, 0)
	s.is(s.wish(tidemill.ActionPromote, 2), fold.Refused)
	v := s.fold(tidemill.TypeModelPromotionProposed, "", "ada", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: 2, Basis: 1, Turn: s.m.Turn, Force: true})
	s.is(v, fold.Accepted)
	s.champion(2, 1)
}

// A verdict against a former champion is void.
func TestAVerdictOfAnotherTurnIsVoid(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1")
	s.register("r2", 20)
	s.register("r3", 30)
	stale := tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 3, Run: "r3", Basis: 1, Turn: s.m.Turn, Judgement: &tidemill.Judgement{Passed: true}}
	s.is(s.judge(2, true, ""), fold.Accepted)
	s.is(s.fold(tidemill.TypeModelPromotionProposed, "r3", "", stale), fold.Refused)
	s.is(s.wish(tidemill.ActionRollback, 1), fold.Accepted) // the same champion again, but in another turn
	s.is(s.fold(tidemill.TypeModelPromotionProposed, "r3", "", stale), fold.Refused)
	s.is(s.judge(3, true, ""), fold.Accepted)
	s.champion(3, 1)
}

func TestASlowRunNeverOverwrites(t *testing.T) {
	s := newStage(t)
	s.is(s.register("new", 20), fold.Accepted)
	s.is(s.judge(1, true, ""), fold.Accepted)
	s.is(s.register("old", 10), fold.Accepted)
	v := s.judge(2, true, "")
	s.is(v, fold.Accepted)
	if v.Judgement.Passed || !strings.Contains(v.Judgement.Sentence, "began before") {
		t.Errorf("%+v", v.Judgement)
	}
	s.champion(1, 0)
	s.owes(tidemill.TypeModelPromoted, tidemill.TypeModelRefused)
}

func TestRollbackAndPin(t *testing.T) {
	s := newStage(t)
	s.is(s.wish(tidemill.ActionRollback, 1), fold.Refused)
	s.registerAll("r1", "r2")
	s.register("r3", 30)
	s.judge(3, false, "")
	s.is(s.wish(tidemill.ActionRollback, 3), fold.Refused) // it was never the champion
	s.is(s.wish(tidemill.ActionRollback, 2), fold.Refused) // it is the champion
	s.is(s.wish(tidemill.ActionRollback, 1), fold.Accepted)
	s.champion(1, 2)
	s.is(s.wish(tidemill.ActionPin, 1), fold.Accepted)
	s.is(s.wish(tidemill.ActionPin, 1), fold.Known)
	s.is(s.wish(tidemill.ActionPromote, 2), fold.Refused)
	s.register("r4", 40)
	v := s.judge(4, true, "")
	s.is(v, fold.Accepted)
	if !v.Judgement.Passed || !strings.Contains(v.Judgement.Sentence, "pinned") || s.m.Find(4).State != tidemill.VersionAwaiting {
		t.Errorf("%+v, %+v", v.Judgement, s.m.Find(4))
	}
	s.is(s.wish(tidemill.ActionPin, 2), fold.Accepted) // it is not the champion
	s.champion(2, 1)
	s.is(s.wish(tidemill.ActionUnpin, 0), fold.Accepted)
	s.is(s.wish(tidemill.ActionUnpin, 0), fold.Refused)
	s.is(s.wish(tidemill.ActionPromote, 4), fold.Accepted)
	s.champion(4, 2)
	s.owes(tidemill.TypeModelPromoted, tidemill.TypeModelPromoted, tidemill.TypeModelRefused, tidemill.TypeModelRolledBack, tidemill.TypeModelPinned,
		tidemill.TypeModelAwaiting, tidemill.TypeModelPinned, tidemill.TypeModelUnpinned, tidemill.TypeModelPromoted)
}

func TestAHeldVersionAwaitsAPerson(t *testing.T) {
	s := newStage(t)
	s.register("r1", 10)
	v := s.judge(1, true, "promotions are frozen")
	s.is(v, fold.Accepted)
	s.champion(0, 0)
	s.owes(tidemill.TypeModelAwaiting)
	if !strings.Contains(v.Judgement.Sentence, "frozen") {
		t.Errorf("%+v", v.Judgement)
	}
	s.is(s.wish(tidemill.ActionPromote, 1), fold.Accepted)
	s.champion(1, 0)
}

// A scorer's report about the champion is kept until that scorer has loaded the champion, or the
// champion changes. A report about another version came too late.
func TestAChampionThatIsNotServed(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1", "r2")
	report := func(version int) fold.ModelVerdict {
		return s.fold(tidemill.TypeModelUnloadable, "", "", tidemill.ModelUnloadable{Scorer: "intents", Version: version, Kept: 1, Error: "it is cut off"})
	}
	s.is(report(1), fold.Refused)
	s.is(report(2), fold.Accepted)
	loaded := func(scorer string, version int) fold.ModelVerdict {
		return s.fold(tidemill.TypeModelLoaded, "", "", tidemill.ModelLoaded{Scorer: scorer, Version: version})
	}
	s.is(loaded("others", 2), fold.Known)
	s.is(loaded("intents", 1), fold.Known)
	if u := s.m.Unserved; u == nil || u.Scorer != "intents" || u.Kept != 1 || u.Error != "it is cut off" || u.At.IsZero() {
		t.Errorf("the report is %+v", u)
	}
	instead := tidemill.ModelUnloadable{Scorer: "intents", Version: 1, Error: "it is cut off too"}
	s.is(s.fold(tidemill.TypeModelUnloadable, "", "", instead), fold.Accepted)
	if u := s.m.Unserved; u == nil || u.Kept != 0 || u.Error != "it is cut off" {
		t.Errorf("no version answers, and the report is %+v", u)
	}
	s.is(loaded("intents", 2), fold.Accepted)
	if s.m.Unserved != nil {
		t.Errorf("a champion that is loaded has the report %+v", s.m.Unserved)
	}
	s.is(loaded("intents", 2), fold.Known)
	s.is(report(2), fold.Accepted)
	s.is(s.wish(tidemill.ActionRollback, 1), fold.Accepted)
	if s.m.Unserved != nil {
		t.Errorf("another champion has the report %+v", s.m.Unserved)
	}
}

// A scorer's report about the canary is kept until that scorer serves it, and is none about the champion.
func TestACanaryThatIsNotServed(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1", "r2")
	s.m.Canary = &fold.Canary{Version: 3}
	report := tidemill.ModelUnloadable{Scorer: "intents", Version: 3, Error: "it has no input x"}
	s.is(s.fold(tidemill.TypeModelUnloadable, "", "", report), fold.Accepted)
	if u := s.m.Canary.Unserved; u == nil || u.Scorer != "intents" || u.Error != report.Error || s.m.Unserved != nil {
		t.Errorf("the report is %+v, and that of the champion %+v", u, s.m.Unserved)
	}
	loaded := func(scorer string) fold.ModelVerdict {
		return s.fold(tidemill.TypeModelLoaded, "", "", tidemill.ModelLoaded{Scorer: scorer, Version: 3})
	}
	s.is(loaded("others"), fold.Known)
	s.is(loaded("intents"), fold.Accepted)
	s.is(loaded("intents"), fold.Known)
	if s.m.Canary.Unserved != nil {
		t.Errorf("the report is %+v", s.m.Canary.Unserved)
	}
}

// A figure of the champion that has drifted is kept until it has returned or the champion changes. A report about
// another version came too late.
func TestADriftIsKept(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1", "r2")
	drifted := func(version int, figure string) fold.ModelVerdict {
		return s.fold(tidemill.TypeModelDrifted, "", "", tidemill.ModelDrifted{Scorer: "intents", Version: version, Figure: figure, Value: "order", Before: 0.1, Now: 0.4})
	}
	s.is(drifted(1, tidemill.FigureLabels), fold.Refused)
	s.is(drifted(2, tidemill.FigureLabels), fold.Accepted)
	s.is(drifted(2, tidemill.FigureLabels), fold.Known)
	s.is(drifted(2, tidemill.FigureScores), fold.Accepted)
	ended := func(scorer, figure string) fold.ModelVerdict {
		return s.fold(tidemill.TypeModelDriftEnded, "", "", tidemill.ModelDriftEnded{Scorer: scorer, Version: 2, Figure: figure})
	}
	s.is(ended("others", tidemill.FigureLabels), fold.Known)
	s.is(ended("intents", tidemill.FigureLabels), fold.Accepted)
	s.is(ended("intents", tidemill.FigureLabels), fold.Known)
	if d := s.m.Drifts; len(d) != 1 || d[0].Figure != tidemill.FigureScores || d[0].Now != 0.4 || d[0].At.IsZero() {
		t.Errorf("the model has the drifts %+v", d)
	}
	s.is(s.wish(tidemill.ActionRollback, 1), fold.Accepted)
	if len(s.m.Drifts) > 0 {
		t.Errorf("another champion has the drifts %+v", s.m.Drifts)
	}
}

// The newest versions, the champion and the former champion are kept. A dropped version
// cannot be registered again.
func TestOldVersionsGo(t *testing.T) {
	s := newStage(t)
	s.keep = 3
	s.registerAll("r1", "r2")
	for i := 3; i <= 8; i++ {
		s.is(s.register(fmt.Sprint("r", i), int64(10*i)), fold.Accepted)
		s.is(s.judge(i, false, ""), fold.Accepted)
	}
	var kept []int
	for _, h := range s.m.Versions {
		kept = append(kept, h.Number)
	}
	if !slices.Equal(kept, []int{1, 2, 8}) {
		t.Errorf("%v are kept", kept)
	}
	s.is(s.register("r5", 50), fold.Refused)
	if s.m.Which(tidemill.WhichNewest) != 8 || s.m.Which("") != 2 || s.m.Which(tidemill.WhichPrevious) != 1 || s.m.Which("5") != 0 || s.m.Which("8") != 8 {
		t.Error("names do not lead to their versions")
	}
}

// A version without a verdict is kept even if keep is small. Otherwise a version that is
// registered late could push it out, and the newest data would never be judged.
func TestWhatIsNotJudgedIsKept(t *testing.T) {
	s := newStage(t)
	s.keep = 1
	s.registerAll("r1", "r2")
	s.is(s.register("newest", 50), fold.Accepted)
	s.is(s.register("late", 15), fold.Accepted)
	s.is(s.judge(4, true, ""), fold.Accepted)
	s.champion(2, 1)
	s.is(s.judge(3, true, ""), fold.Accepted)
	s.champion(3, 2)
	for i := range 20 { // their gate is faulty, so they cannot be judged
		s.is(s.register(fmt.Sprint("bad", i), int64(100+i)), fold.Accepted)
	}
	if n := len(s.m.Versions); n != 12 || s.m.Find(3) == nil || s.m.Find(2) == nil {
		t.Errorf("%d versions are kept: %+v", n, s.m.Versions)
	}
}

// Several recipes of one key may have their runs on one partition of the log. In this case the
// partition has several marks of the key's end.
func TestRetiredByTheEndsOfSeveralRecipes(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1", "r2")
	s.is(s.fold(tidemill.TypeModelRetired, "", "ada", tidemill.ModelRetired{Asked: s.now, Marks: []tidemill.Mark{{Partition: 7, Offset: 15}, {Partition: 7, Offset: 25}}}), fold.Accepted)
	if len(s.m.Versions) > 0 || s.m.Champion != 0 {
		t.Errorf("%+v", s.m)
	}
}

// Numbered runs of one recipe and key are ordered by their numbers, wherever a copy of the log has
// their facts. Runs without a number began before.
func TestNumberedRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.keep = 2
	numbered := func(offset, number int64) tidemill.Mark {
		return tidemill.Mark{Partition: 7, Offset: offset, Making: "intent/k", Number: number}
	}
	register := func(run string, began int64, at tidemill.Mark) fold.ModelVerdict {
		t.Helper()
		return s.fold(tidemill.TypeModelRegistered, run, "", tidemill.ModelRegistered{Artifact: "a-" + run, Judge: tidemill.Judge{Keep: s.keep},
			Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: "k", Began: time.Unix(began, 0), Mark: at}})
	}
	old := func(offset int64) tidemill.Mark { return tidemill.Mark{Partition: 7, Offset: offset} }
	s.is(register("old", 1, old(900)), fold.Accepted)
	s.is(s.judge(1, true, ""), fold.Accepted)
	s.is(register("new", 2, numbered(5, 1)), fold.Accepted)
	s.is(s.judge(2, true, ""), fold.Accepted)
	s.champion(2, 1) // although its offset is smaller
	s.is(register("newer", 1, numbered(4, 3)), fold.Accepted)
	s.is(s.judge(3, true, ""), fold.Accepted)
	s.champion(3, 2) // although its offset and its clock are
	s.is(register("between", 9, numbered(800, 2)), fold.Accepted)
	if v := s.judge(4, true, ""); v.Judgement == nil || v.Judgement.Passed {
		t.Errorf("a run from before that of the champion: %+v", v)
	}
	s.is(register("next", 9, numbered(1, 4)), fold.Accepted)
	s.is(s.judge(5, true, ""), fold.Accepted)
	s.is(register("last", 9, numbered(2, 5)), fold.Accepted)
	if s.m.Find(1) != nil || s.m.Find(4) != nil || !s.m.HasFloor(numbered(0, 2)) || s.m.HasFloor(numbered(0, 3)) {
		t.Fatalf("%+v", s.m)
	}
	s.is(register("late", 3, numbered(999, 2)), fold.Refused)
	s.is(register("late and old", 1, old(1000)), fold.Refused)
	s.is(s.fold(tidemill.TypeModelRetired, "", "ada", tidemill.ModelRetired{Asked: time.Unix(0, 0), Marks: []tidemill.Mark{numbered(3, 5)}}), fold.Accepted)
	if len(s.m.Versions) > 0 {
		t.Errorf("after its key they are %+v", s.m.Versions)
	}
	s.is(register("zombie", 9, numbered(1000, 5)), fold.Refused)
	s.is(register("reborn", 9, numbered(0, 6)), fold.Accepted)
}

// After a key's end, versions of its old runs are refused. A run that begins later begins
// the model again.
func TestARetiredModel(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1", "r2")
	retired := tidemill.ModelRetired{Asked: s.now, Marks: []tidemill.Mark{{Partition: 7, Offset: 25}}}
	v := s.fold(tidemill.TypeModelRetired, "", "ada", retired)
	s.is(v, fold.Accepted)
	if !slices.Equal(v.Dropped, []int{1, 2}) || s.m.Retired.IsZero() {
		t.Errorf("%+v, %+v", v, s.m)
	}
	s.champion(0, 0)
	s.owes()
	s.is(s.register("r2", 20), fold.Refused)
	s.is(s.register("zombie", 25), fold.Refused)
	v = s.register("r3", 30)
	s.is(v, fold.Accepted)
	if v.Registered.Number != 3 || !s.m.Retired.IsZero() {
		t.Errorf("%+v", s.m)
	}
	s.is(s.fold(tidemill.TypeModelRetired, "", "ada", retired), fold.Known) // a producer repeats it without an answer
	if s.m.Find(3) == nil {
		t.Error("the second end took away the new version")
	}
}

func TestStrangeFactsOfModels(t *testing.T) {
	s := newStage(t)
	s.registerAll("r1")
	s.is(s.fold("tidemill.model.dreamt", "r1", "", nil), fold.Refused)
	s.is(s.fold(tidemill.TypeModelRegistered, "r2", "", 7), fold.Refused)
	s.is(s.fold(tidemill.TypeModelRegistered, "r2", "", tidemill.ModelRegistered{Origin: tidemill.Origin{Run: "r3"}}), fold.Refused)
	s.is(s.wish(tidemill.ActionPromote, 9), fold.Refused)
	s.is(s.wish("marry", 1), fold.Refused)
	s.is(s.judge(1, true, ""), fold.Known)
	if v := s.m.Apply(fold.Fact{Offset: 0, Type: tidemill.TypeModelRetired}); v.Result != fold.Known {
		t.Errorf("%+v", v)
	}
}
