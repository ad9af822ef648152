package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// model makes a fact of a model. Most of these facts make sense. The models have the same
// names as makings.
func (c *chance) model(r *rand.Rand) *broker.View {
	name := fmt.Sprintf("%s/bot-%d", c.recipes[r.IntN(len(c.recipes))], r.IntN(c.keys))
	m := &fold.Model{}
	if known, ok := c.models.Load(name); ok {
		m = known.(*fold.Model)
	}
	if len(m.Owed) > 0 && r.IntN(2) == 0 {
		o := m.Owed[r.IntN(len(m.Owed))]
		return c.ofModel(o.Type, name, "", tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version})
	}
	switch n := r.IntN(30); {
	case n == 0:
		return c.oddModel(r, name)
	case n == 2 && m.Champion != 0:
		return c.ofModel(tidemill.TypeModelUnloadable, name, "", tidemill.ModelUnloadable{Scorer: "intents", Version: m.Champion, Error: "it is cut off"})
	case n == 3 && m.Champion != 0:
		return c.ofModel(tidemill.TypeModelLoaded, name, "", tidemill.ModelLoaded{Scorer: "intents", Version: m.Champion})
	case n == 4 && m.Champion != 0:
		return c.ofModel(tidemill.TypeModelDrifted, name, "", tidemill.ModelDrifted{Scorer: "intents", Version: m.Champion, Figure: tidemill.FigureLabels, Value: "order", Now: 0.5})
	case n == 5 && len(m.Drifts) > 0:
		return c.ofModel(tidemill.TypeModelDriftEnded, name, "", tidemill.ModelDriftEnded{Scorer: "intents", Version: m.Champion, Figure: tidemill.FigureLabels})
	case n == 1:
		return c.ofModel(tidemill.TypeModelRetired, name, "", tidemill.ModelRetired{Asked: time.Now(), Marks: []tidemill.Mark{chanceMark(r, name, 50)}})
	case n < 12 || len(m.Versions) == 0:
		run := fmt.Sprint("run-", r.IntN(100))
		return c.ofModel(tidemill.TypeModelRegistered, name, run, c.version(r, name, run))
	case n < 22:
		return c.judge(r, name, m)
	}
	return c.wish(r, name, m)
}

func (c *chance) version(r *rand.Rand, name, run string) tidemill.ModelRegistered {
	return tidemill.ModelRegistered{Artifact: run + " made", Bytes: 7, Report: "report", Metrics: map[string]float64{"accuracy": r.Float64()},
		Judge:  tidemill.Judge{Gate: []string{"metrics.accuracy > 0.5"}, Keep: 1 + r.IntN(5)},
		Origin: tidemill.Origin{Run: run, Recipe: name[:6], Began: time.Unix(int64(r.IntN(1e9)), 0).UTC(), Mark: chanceMark(r, name, 1000)}}
}

// chanceMark returns the mark of a start, as this version writes it or as an earlier one did.
func chanceMark(r *rand.Rand, name string, most int) tidemill.Mark {
	m := tidemill.Mark{Partition: int32(r.IntN(2)), Offset: int64(r.IntN(most))}
	if n := r.IntN(4); n > 1 {
		m.Making, m.Number = fmt.Sprint(name, n), int64(r.IntN(most))
	}
	return m
}

func (c *chance) judge(r *rand.Rand, name string, m *fold.Model) *broker.View {
	h := m.Versions[len(m.Versions)-1-r.IntN(min(2, len(m.Versions)))]
	return c.ofModel(tidemill.TypeModelPromotionProposed, name, h.Run, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: h.Number, Run: h.Run,
		Basis: m.Champion, Turn: m.Turn, Hold: []string{"", "", "it is frozen"}[r.IntN(3)],
		Judgement: &tidemill.Judgement{Passed: r.IntN(3) > 0, Sentence: "as it happens", Clauses: []tidemill.Clause{{Text: "metrics.accuracy > 0.5"}}}})
}

func (c *chance) wish(r *rand.Rand, name string, m *fold.Model) *broker.View {
	actions := []tidemill.Action{tidemill.ActionPromote, tidemill.ActionRollback, tidemill.ActionPin, tidemill.ActionUnpin, tidemill.ActionUnpin}
	h := m.Versions[r.IntN(len(m.Versions))]
	return c.ofModel(tidemill.TypeModelPromotionProposed, name, "", tidemill.PromotionProposed{Action: actions[r.IntN(len(actions))], Version: h.Number,
		Basis: m.Champion, Turn: m.Turn - int64(r.IntN(4)/3), Force: r.IntN(2) == 0, Reason: "somebody wants it"})
}

// oddModel returns a fact that must be skipped or refused.
func (c *chance) oddModel(r *rand.Rand, name string) *broker.View {
	v := c.ofModel(tidemill.TypeModelRegistered, name, "odd", "no object")
	switch r.IntN(3) {
	case 0:
		v.Key = []byte("elsewhere")
	case 1:
		v.Type = tidemill.TypeModelUnloadable
	}
	return v
}

// ofModel returns a fact of a model.
func (s *script) ofModel(typ, name, run string, data any) *broker.View {
	v := s.view(typ, "intent", "bot of "+name, run, data)
	v.Key = []byte(tidemill.ModelKey(name))
	v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrModel, Value: name})
	return v
}
