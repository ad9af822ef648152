package champions

import (
	"fmt"
	"math/rand/v2"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// chance makes facts of a few models. Most facts make sense for the models that it expects.
type chance struct {
	*rand.Rand
	*script
	models map[string]*fold.Model
	names  int
}

func newChance(seed uint64) *chance {
	return &chance{Rand: rand.New(rand.NewPCG(seed, 7)), script: &script{}, models: map[string]*fold.Model{}, names: 1 + int(seed%9)}
}

// view returns the next fact.
func (c *chance) view() *broker.View {
	name := fmt.Sprintf("intent/bot-%d", c.IntN(c.names))
	m := c.models[name]
	if m == nil {
		m = &fold.Model{}
	}
	if len(m.Owed) > 0 && c.IntN(3) == 0 {
		o := m.Owed[c.IntN(len(m.Owed))]
		return c.fact(o.Type, name, "", tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version})
	}
	switch n := c.IntN(30); {
	case n == 0:
		return c.oddFact(name)
	case n == 2:
		return c.report(name, m)
	case n == 1:
		return c.fact(tidemill.TypeModelRetired, name, "", tidemill.ModelRetired{Asked: time.Now(), Marks: []tidemill.Mark{c.mark(name, 200)}})
	case n < 10 || len(m.Versions) == 0:
		return c.version(name)
	case n < 20:
		return c.judge(name, m)
	}
	return c.wish(name, m)
}

// report is a scorer's report that it cannot load a version, or that it has loaded one.
func (c *chance) report(name string, m *fold.Model) *broker.View {
	scorer, version := []string{"intents", "others"}[c.IntN(2)], max(0, m.Champion-c.IntN(3)/2)
	if c.IntN(2) == 0 {
		return c.fact(tidemill.TypeModelLoaded, name, "", tidemill.ModelLoaded{Scorer: scorer, Version: version})
	}
	return c.fact(tidemill.TypeModelUnloadable, name, "", tidemill.ModelUnloadable{Scorer: scorer, Version: version, Error: "it is cut off"})
}

func (c *chance) version(name string) *broker.View {
	run := fmt.Sprint("run-", c.IntN(400))
	return c.fact(tidemill.TypeModelRegistered, name, run, tidemill.ModelRegistered{Artifact: run + " of " + name, Judge: tidemill.Judge{Keep: 1 + c.IntN(5)},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Began: time.Unix(int64(c.IntN(1e9)), 7).UTC(), Mark: c.mark(name, 1000)}})
}

// mark returns the mark of a start, as this version writes it or as an earlier one did.
func (c *chance) mark(name string, most int) tidemill.Mark {
	m := tidemill.Mark{Partition: int32(c.IntN(2)), Offset: int64(c.IntN(most))}
	if n := c.IntN(4); n > 1 {
		m.Making, m.Number = fmt.Sprint(name, n), int64(c.IntN(most))
	}
	return m
}

func (c *chance) judge(name string, m *fold.Model) *broker.View {
	h := m.Versions[len(m.Versions)-1-c.IntN(min(2, len(m.Versions)))]
	return c.fact(tidemill.TypeModelPromotionProposed, name, h.Run, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.Number, Run: h.Run,
		Basis: m.Champion, Turn: m.Turn, Hold: []string{"", "", "it is frozen"}[c.IntN(3)], Judgement: &tidemill.Judgement{Passed: c.IntN(3) > 0, Sentence: "as it happens"}})
}

func (c *chance) wish(name string, m *fold.Model) *broker.View {
	actions := []tidemill.Action{tidemill.ActionPromote, tidemill.ActionRollback, tidemill.ActionPin, tidemill.ActionUnpin, tidemill.ActionUnpin}
	h := m.Versions[c.IntN(len(m.Versions))]
	return c.fact(tidemill.TypeModelPromotionProposed, name, "", tidemill.PromotionProposed{Action: actions[c.IntN(len(actions))], Version: h.Number,
		Basis: m.Champion, Turn: m.Turn - int64(c.IntN(4)/3), Force: c.IntN(2) == 0, Reason: "somebody wants it"})
}

// oddFact returns a fact that must be ignored, or that is void.
func (c *chance) oddFact(name string) *broker.View {
	v := c.fact(tidemill.TypeModelRegistered, name, "odd", "no object")
	switch c.IntN(4) {
	case 0:
		v.Key = []byte("elsewhere")
	case 1:
		v.Type = tidemill.TypeRunFinished
	case 2:
		v.Extensions = v.Extensions[1:] // it names no model
	}
	return v
}

// fold folds a fact into the expected models, and returns the fact's model; nil if the fact is
// ignored.
func (c *chance) fold(v *broker.View, at broker.Position) *fold.Model {
	name, _ := v.Attribute(tidemill.AttrModel)
	if string(v.Key) != tidemill.ModelKey(name) || v.Type == tidemill.TypeRunFinished {
		return nil
	}
	run, _ := v.Attribute(tidemill.AttrRun)
	m := c.models[name]
	if m == nil {
		m = &fold.Model{}
		c.models[name] = m
	}
	on, _ := time.Parse(time.RFC3339Nano, v.Time)
	m.Apply(fold.Fact{Partition: at.Partition, Offset: at.Offset, ID: v.ID, Type: v.Type, Model: name, Key: v.Subject, Run: run, At: on, Data: v.Data})
	return m
}
