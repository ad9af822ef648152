package fold_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// modelWriter writes the facts of one model like many judges and people that do not know the
// newest facts. Each sees the fold as it was some facts ago, writes a fact that follows from
// it, and often writes it twice.
type modelWriter struct {
	*rand.Rand
	facts []fold.Fact
	was   []fold.Model // states before each fact
	now   fold.Model
	at    time.Time
	keep  int
}

func newModelWriter(seed uint64) *modelWriter {
	c := &modelWriter{Rand: rand.New(rand.NewPCG(seed, 6)), at: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)}
	c.keep = 2 + c.IntN(5)
	return c
}

func (c *modelWriter) seen() fold.Model {
	if behind := c.IntN(8); behind > 0 && behind <= len(c.was) && c.IntN(2) == 0 {
		return c.was[len(c.was)-behind]
	}
	return c.now
}

func (c *modelWriter) say(typ, run string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	c.at = c.at.Add(time.Duration(c.IntN(20)) * time.Second)
	c.put(fold.Fact{ID: fmt.Sprint("f", len(c.facts)), Type: typ, Run: run, At: c.at, By: []string{"", "ada"}[c.IntN(2)], Data: text})
}

func (c *modelWriter) put(f fold.Fact) {
	f.Partition, f.Model, f.Key, f.Recipe = 5, "m/k", "k", "r"
	f.Offset = 0
	if n := len(c.facts); n > 0 {
		f.Offset = c.facts[n-1].Offset + 1 + int64(c.IntN(3)) // facts of other models are in between
	}
	c.was = append(c.was, copiedModel(c.now))
	c.facts = append(c.facts, f)
	c.now.Apply(f)
}

// markOf returns the mark of the start of a run. The first runs began by facts of an earlier version, on
// one of two partitions, so some of them are compared by offset and some by time. The other facts were
// copied, so only their numbers mean something.
func markOf(run int) tidemill.Mark {
	if run <= 20 {
		return tidemill.Mark{Partition: int32(run % 2), Offset: int64(run)}
	}
	return tidemill.Mark{Partition: 1, Offset: int64(60 - run), Making: "r/k", Number: int64(run - 20)}
}

// act writes one random fact. A run's number is also the time of its start.
func (c *modelWriter) act() {
	m := c.seen()
	switch n := c.IntN(20); {
	case n < 5:
		run := 1 + c.IntN(60)
		c.say(tidemill.TypeModelRegistered, fmt.Sprint("run-", run), tidemill.ModelRegistered{Artifact: "a", Judge: tidemill.Judge{Keep: c.keep},
			Origin: tidemill.Origin{Run: fmt.Sprint("run-", run), Recipe: "r", Key: "k", Began: time.Unix(int64(run), 0), Mark: markOf(run)}})
	case n < 11 && len(m.Versions) > 0:
		h := m.Versions[c.IntN(len(m.Versions))]
		p := tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.Number, Run: h.Run, Basis: m.Champion, Turn: m.Turn,
			Judgement: &tidemill.Judgement{Passed: c.IntN(4) > 0, Sentence: "so"}}
		if c.IntN(6) == 0 {
			p.Hold = "frozen"
		}
		switch c.IntN(4) {
		case 1:
			p.Action = tidemill.ActionTry
		case 2:
			p.Action, p.Judgement.Trial = tidemill.ActionConclude, &tidemill.TrialVerdict{Recipe: "r", Budget: tidemill.TrialBudget{Level: 0.05}}
		}
		c.say(tidemill.TypeModelPromotionProposed, h.Run, p)
	case n < 15:
		action := []tidemill.Action{tidemill.ActionPromote, tidemill.ActionRollback, tidemill.ActionPin, tidemill.ActionUnpin, "marry"}[c.IntN(5)]
		c.say(tidemill.TypeModelPromotionProposed, "", tidemill.PromotionProposed{Action: action, Version: 1 + c.IntN(m.Last+1), Basis: m.Champion, Turn: m.Turn, Force: c.IntN(2) == 0})
	case n < 17 && len(m.Owed) > 0:
		o := m.Owed[c.IntN(len(m.Owed))]
		c.say(o.Type, "", tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version})
	case n == 17 && c.IntN(6) == 0:
		c.say(tidemill.TypeModelRetired, "", tidemill.ModelRetired{Asked: c.at, Marks: []tidemill.Mark{markOf(c.IntN(60))}})
	case len(c.facts) > 0:
		c.put(c.facts[c.IntN(len(c.facts))]) // a producer repeats it without an answer, or a zombie writes it
	}
}

func copiedModel(m fold.Model) (c fold.Model) {
	data, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		panic(err)
	}
	return c
}

// modelChecker checks that the fold keeps the rules for models.
type modelChecker struct {
	*testing.T
	numbers map[string]int                // numbers of versions, by run
	origins map[int]time.Time             // starts of runs, by number of the version
	owed    map[string]bool               // announcements, by proposal
	judged  map[int]tidemill.VersionState // states after the gate's judgement
}

func (j *modelChecker) watch(m *fold.Model, f fold.Fact) {
	j.Helper()
	before := copiedModel(*m)
	v := m.Apply(f)
	if (v.Result == fold.Refused) != (v.Reason != "") {
		j.Fatalf("%d: %+v", f.Offset, v)
	}
	if v.Result != fold.Accepted {
		same := copiedModel(*m)
		same.Next = before.Next
		same.Name, same.Key, same.Asked = before.Name, before.Key, before.Asked // a refused request is kept too
		if a, b := text(same), text(before); a != b {
			j.Fatalf("%d: %s, and yet\n%s\nbecame\n%s", f.Offset, v.Result, b, a)
		}
	}
	if v.Registered != nil {
		if n := j.numbers[f.Run]; n != 0 {
			j.Fatalf("%d: %s is version %d and %d", f.Offset, f.Run, n, v.Registered.Number)
		}
		j.numbers[f.Run], j.origins[v.Registered.Number] = v.Registered.Number, v.Registered.Began
	}
	j.checkChampion(m, before, f)
	j.checkKept(m)
}

func text(m fold.Model) string {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// checkChampion checks a change of the champion.
func (j *modelChecker) checkChampion(m *fold.Model, before fold.Model, f fold.Fact) {
	j.Helper()
	if m.Turn < before.Turn || m.Champion != before.Champion && m.Turn != before.Turn+1 {
		j.Fatalf("%d: from turn %d to %d", f.Offset, before.Turn, m.Turn)
	}
	if m.Champion == before.Champion || f.Type == tidemill.TypeModelRetired {
		return
	}
	var p tidemill.PromotionProposed
	if err := json.Unmarshal(f.Data, &p); err != nil || f.Type != tidemill.TypeModelPromotionProposed || p.Turn != before.Turn || p.Basis != before.Champion {
		j.Fatalf("%d: the champion was changed by %s %s", f.Offset, f.Type, f.Data)
	}
	if before.Pin != nil && p.Action != tidemill.ActionPin {
		j.Fatalf("%d: it was pinned", f.Offset)
	}
	was, is := j.origins[before.Champion], j.origins[m.Champion]
	if (p.Action == tidemill.ActionJudge || p.Action == tidemill.ActionConclude) && before.Champion != 0 && is.Before(was) {
		j.Fatalf("%d: the run of %v overwrote that of %v, which is newer", f.Offset, is, was)
	}
	if j.owed[f.ID] {
		j.Fatalf("%d: %s was accepted twice", f.Offset, f.ID)
	}
	j.owed[f.ID] = true
}

// checkKept checks the versions that are kept.
func (j *modelChecker) checkKept(m *fold.Model) {
	j.Helper()
	sorted := slices.IsSortedFunc(m.Versions, func(a, b fold.Held) int { return a.Number - b.Number })
	if !sorted || m.Champion != 0 && m.Find(m.Champion) == nil || m.Previous != 0 && m.Find(m.Previous) == nil {
		j.Fatalf("%s", text(*m))
	}
	onTrial := 0
	for _, h := range m.Versions {
		if h.State == tidemill.VersionTrial {
			onTrial++
		}
		if onTrial > 1 {
			j.Fatalf("two versions are on trial: %s", text(*m))
		}
		if was := j.judged[h.Number]; was != "" && was != tidemill.VersionRegistered && was != tidemill.VersionTrial && h.State != was && h.State != tidemill.VersionPromoted {
			j.Fatalf("version %d was %s and is %s", h.Number, was, h.State)
		}
		j.judged[h.Number] = h.State
	}
}

// For any facts in any order, there is at most one champion, only proposals that name it
// change it, and the fold does not depend on the batches.
func TestModelsStayOne(t *testing.T) {
	crowned := 0
	for seed := range uint64(40) {
		c := newModelWriter(seed)
		for range 200 {
			c.act()
		}
		j := &modelChecker{T: t, numbers: map[string]int{}, origins: map[int]time.Time{}, owed: map[string]bool{}, judged: map[int]tidemill.VersionState{}}
		var m fold.Model
		for _, f := range c.facts {
			j.watch(&m, f)
		}
		crowned += len(j.owed)
		if got := c.inBatches(); got != text(m) {
			t.Fatalf("seed %d: in batches it is\n%s\nand not\n%s", seed, got, text(m))
		}
	}
	if crowned < 130 {
		t.Errorf("only %d changes of the champion", crowned)
	}
}

// inBatches folds the facts in batches, and some facts twice. Between batches the state is
// encoded and decoded.
func (c *modelWriter) inBatches() string {
	var m fold.Model
	for from := 0; from < len(c.facts); {
		m = copiedModel(m)
		to := min(len(c.facts), from+1+c.IntN(20))
		for _, f := range c.facts[max(0, from-c.IntN(5)):to] {
			m.Apply(f)
		}
		from = to
	}
	return text(m)
}
