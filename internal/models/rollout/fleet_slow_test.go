//go:build slow

package rollout

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/triggers/commands"
)

// fleet is an install of many keys in virtual time. The folds and the decisions are the real ones; the trainer and the
// clock are not. Each key is trained once a day, at its own time.
type fleet struct {
	*testing.T
	r      *rand.Rand
	recipe *config.Recipe
	now    time.Time
	state  commands.State
	next   int64
	ev     *Evidence
	models map[string]*fold.Model
	images map[string]string // image of each version, such as intent/k1@2
	// accuracy returns the accuracy of a version that an image makes for a key.
	accuracy  func(image, key string) float64
	right     map[string]float64 // accuracy of each version
	touched   map[string]bool    // keys that a rollout has promoted a version of
	rollbacks map[string]int
	labels    int // outcomes an hour of each key of the first 10 %; the evidence does not depend on the others
	lead      bool
}

func newFleet(t *testing.T, keys int, seed uint64) *fleet {
	f := &fleet{T: t, r: rand.New(rand.NewPCG(seed, 5)), recipe: trainer("1"), now: start, models: map[string]*fold.Model{}, images: map[string]string{},
		right: map[string]float64{}, touched: map[string]bool{}, rollbacks: map[string]int{}, lead: true}
	f.accuracy = func(string, string) float64 { return min(0.99, 0.88+0.05*f.r.NormFloat64()) }
	for i := range keys {
		key := fmt.Sprint("k", i)
		f.models[key] = &fold.Model{}
		f.train(key)
	}
	f.decide()
	return f
}

func (f *fleet) rollout() *commands.Rollout { return f.state.Rollout("intent") }

// train makes a version of a key, in the way that the fold chooses, and promotes it.
func (f *fleet) train(key string) {
	choice := f.rollout().Choose(f.recipe.Way().Hash, key)
	image := f.recipe.Run.Image
	if choice.Base != nil {
		r, err := f.recipe.In(*choice.Base)
		if err != nil {
			f.Fatal(err)
		}
		image = r.Run.Image
	}
	m, name := f.models[key], "intent/"+key
	number := int64(m.Last + 1)
	run := fmt.Sprint("run-", key, "-", number)
	origin := tidemill.Origin{Run: run, Recipe: "intent", Key: key, Rollout: choice.Rollout, Began: f.now, Mark: tidemill.Mark{Making: tidemill.RunKey("intent", key), Number: number}}
	f.event(tidemill.TypeRunFinished, name, nil, map[string]string{tidemill.AttrRun: run, tidemill.AttrRollout: choice.Rollout, tidemill.AttrOutcome: "succeeded"})
	f.apply(key, tidemill.TypeModelRegistered, run, "registered "+run, tidemill.ModelRegistered{Artifact: "a", Judge: tidemill.Judge{Keep: 10}, Origin: origin})
	version := m.Last
	f.images[tidemill.VersionName(name, version)] = image
	right := f.accuracy(image, key)
	f.right[tidemill.VersionName(name, version)] = right
	j := &tidemill.Judgement{Passed: true, Against: m.Champion}
	if m.Champion != 0 && f.lead { // measured on 100 rows
		j.Lead = new(f.sample(right, 100) - f.sample(f.right[tidemill.VersionName(name, m.Champion)], 100))
	}
	f.propose(key, run, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: version, Run: run, Basis: m.Champion, Turn: m.Turn, Judgement: j, Origin: &origin}, run)
	if choice.Rollout != "" {
		f.touched[key] = true
	}
}

func (f *fleet) sample(p float64, n int) float64 {
	right := 0
	for range n {
		if f.r.Float64() < p {
			right++
		}
	}
	return float64(right) / float64(n)
}

func (f *fleet) apply(key, typ, run, id string, data any) fold.ModelVerdict {
	text, err := json.Marshal(data)
	if err != nil {
		f.Fatal(err)
	}
	f.next++
	return f.models[key].Apply(fold.Fact{Offset: f.next, ID: id, Type: typ, Model: "intent/" + key, Key: key, Run: run, At: f.now, Data: text})
}

// propose proposes a change, and announces what the fold owes, as the registrar does.
func (f *fleet) propose(key, run string, p tidemill.PromotionProposed, id string) fold.ModelVerdict {
	v := f.apply(key, tidemill.TypeModelPromotionProposed, run, id, p)
	m := f.models[key]
	for _, o := range m.Owed {
		d := tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version, Champion: o.Champion, Before: o.Before, Judgement: p.Judgement, Origin: p.Origin}
		f.event(o.Type, "intent/"+key, d, map[string]string{tidemill.AttrRecipe: "intent"})
		if o.Type == tidemill.TypeModelRolledBack {
			f.rollbacks[key]++
		}
	}
	m.Owed = nil
	return v
}

// event gives an event to the evidence, twice at times: the log may have an event twice.
func (f *fleet) event(typ, model string, data any, attributes map[string]string) {
	if f.ev == nil {
		return
	}
	text, err := json.Marshal(data)
	if err != nil {
		f.Fatal(err)
	}
	f.next++
	v := broker.View{ID: strconv.FormatInt(f.next, 10), Type: typ, Time: f.now.Format(time.RFC3339Nano), Data: text,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}}}
	for name, value := range attributes {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: name, Value: value})
	}
	f.ev.Add(&v)
	if f.r.IntN(10) == 0 {
		f.ev.Add(&v)
	}
}

func (f *fleet) command(typ string, d tidemill.RolloutData) {
	text, err := json.Marshal(d)
	if err != nil {
		f.Fatal(err)
	}
	f.state.Apply(commands.Command{Offset: f.state.Next(), ID: fmt.Sprint(f.next), Type: typ, Subject: "intent", At: f.now, Data: text})
}

// decide is a look of two controllers at once: both decide by the same state, and both decisions are on the log. Both
// roll the keys of a stopped rollout back.
func (f *fleet) decide() {
	for range 10 {
		s := f.rollout()
		input := Input{Recipe: f.recipe, State: s, Settled: true, Now: f.now}
		if s != nil && s.Open() {
			if f.ev == nil || f.ev.rollout != s.Name() || !f.ev.fresh.Equal(s.Fresh) {
				f.ev = NewEvidence("intent", s.Name(), s.Fresh)
			}
			if s.State == commands.RolloutStopped || s.State == commands.RolloutAborting {
				f.rollBack()
			}
			input.Figures, input.Judged = f.ev.Figures(), f.ev.JudgedSince(s.Since)
			todo, back := f.ev.Cohort()
			input.Left, input.Back = len(todo), back
		}
		d, err := Decide(input)
		if err != nil {
			f.Fatal(err)
		}
		if d.Type == "" {
			return
		}
		f.command(d.Type, d.Data)
		f.command(d.Type, d.Data)
	}
	f.Fatal("ten decisions at one time")
}

func (f *fleet) rollBack() {
	todo, _ := f.ev.Cohort()
	for _, k := range todo {
		if k.To == 0 {
			f.Errorf("%s has nothing to go back to", k.Model)
			continue
		}
		key := k.Model[len("intent/"):]
		m := f.models[key]
		p := tidemill.PromotionProposed{Action: tidemill.ActionRollback, Version: k.To, Basis: k.Champion, Turn: m.Turn}
		first := f.propose(key, "", p, "back "+k.Model)
		second := f.propose(key, "", p, "back "+k.Model)
		if first.Result != fold.Accepted || second.Result == fold.Accepted {
			f.Errorf("two controllers roll %s back: %+v and %+v", k.Model, first, second)
		}
	}
}

// hours lets hours pass. Each hour, a 24th of the keys is trained and their answers get labels, and the controllers look.
func (f *fleet) hours(n int) {
	for range n {
		f.now = f.now.Add(time.Hour)
		for i := f.now.Hour(); i < len(f.models); i += 24 {
			f.train(fmt.Sprint("k", i))
		}
		if f.labels > 0 && f.ev != nil {
			for key := range f.models {
				if tidemill.TakesPart("intent", key, 0.1) {
					f.outcomes(key)
				}
			}
		}
		f.decide()
	}
}

func (f *fleet) outcomes(key string) {
	m := f.models[key]
	for range f.labels {
		d := tidemill.OutcomeData{Key: key, Model: "intent/" + key, Version: m.Champion, Label: "a", Truth: "b"}
		if f.r.Float64() < f.right[tidemill.VersionName(d.Model, d.Version)] {
			d.Truth = "a"
		}
		f.event(tidemill.TypeOutcome, d.Model, d, nil)
	}
}

// checkBack checks that each touched key serves a version of the image before, and went back exactly once.
func (f *fleet) checkBack(image string) {
	f.Helper()
	for key := range f.touched {
		if n := f.rollbacks[key]; n != 1 {
			f.Errorf("%s went back %d times", key, n)
		}
	}
	for key, m := range f.models {
		if got := f.images[tidemill.VersionName("intent/"+key, m.Champion)]; got != image {
			f.Errorf("%s serves a version of image %s", key, got)
		}
	}
}

// A bad image in a fleet of 20,000 keys touches 1.2 % of them at most, and all of these go back, each once. It is 8
// points worse. In the second fleet no gate compares with the champion, so only the labels of the stream show that it
// is 15 points worse.
func TestABadImageTouchesFewKeys(t *testing.T) {
	t.Parallel()
	const keys = 20_000
	for name, c := range map[string]struct {
		worse  float64
		labels int
	}{"by the gates": {0.08, 0}, "by outcomes": {0.15, 2}} {
		f := newFleet(t, keys, 1)
		f.lead, f.labels = c.labels == 0, c.labels
		good := f.accuracy
		f.accuracy = func(image, key string) float64 {
			if image == "2" {
				return good(image, key) - c.worse
			}
			return good(image, key)
		}
		f.recipe = trainer("2")
		f.decide()
		if s := f.rollout(); s.State != commands.RolloutRunning || s.Share != 0.01 {
			t.Fatalf("%s: the rollout is %+v", name, s)
		}
		f.recipe.Rollout.Hold = 72 * time.Hour // for labels of a day before and a day after
		for n := 0; f.rollout().State == commands.RolloutRunning && n < 72; n++ {
			f.hours(1)
		}
		s := f.rollout()
		if s.State != commands.RolloutStopped || s.Reason != "fleet.worse > 0.02" {
			t.Fatalf("%s: the rollout is %s (%s), figures %v", name, s.State, s.Reason, f.ev.Figures())
		}
		f.hours(24) // meanwhile all keys are trained again, in the way before
		if n := len(f.touched); n == 0 || n > keys*12/1000 {
			t.Errorf("%s: %d of %d keys were touched", name, n, keys)
		}
		t.Logf("%s: stopped after %s with %d keys touched, worse by at least %.3f", name, s.Since.Sub(s.Began), len(f.touched), s.Figures["worse"])
		f.checkBack("1")
		f.command(tidemill.TypeRolloutAborted, tidemill.RolloutData{Rollout: s.Name()})
		f.hours(1)
		if s := f.rollout(); s.Open() || s.Last != tidemill.RolloutAborted || s.Back != len(f.touched) {
			t.Errorf("%s: after the abort it is %+v", name, s)
		}
		f.checkBack("1")
	}
}

// An image that is as good goes through to all keys, in nearly all fleets.
func TestAGoodImageGoesThrough(t *testing.T) {
	t.Parallel()
	const fleets = 20
	stopped := 0
	for seed := range uint64(fleets) {
		f := newFleet(t, 300, seed)
		f.recipe = trainer("2")
		f.recipe.Rollout.Keys = []float64{0.1, 0.5, 1}
		f.labels = 1
		f.decide()
		f.hours(5 * 24)
		switch s := f.rollout(); {
		case s.State == commands.RolloutStopped:
			stopped++
		case s.Open() || s.Last != tidemill.RolloutDone || s.Base.Hash != f.recipe.Way().Hash:
			t.Errorf("seed %d: after five days it is %+v", seed, s)
		default:
			f.touched = nil
			f.checkBack("2")
		}
	}
	if stopped > fleets*5/100 {
		t.Errorf("%d of %d rollouts of a good image were stopped", stopped, fleets)
	}
}
