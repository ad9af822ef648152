package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/functions/score"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/scenario"
	"tidemill.dev/loadtest/internal/task"
)

func at(rate float64) measuredTurn {
	return measuredTurn{Result: task.Result{Records: int(rate), Wall: time.Second, CPU: time.Second}}
}

// The ceiling is the faster copy in series with the faster engine, of the same round.
func TestCeilings(t *testing.T) {
	c := comparison{once: turns{at(50), at(50)}, copied: turns{at(200), at(100)}, franz: turns{at(100), at(300)}, native: turns{at(200), at(300)}}
	for i, want := range []float64{100, 150} {
		if got := c.ceilings()[i]; math.Abs(got-want) > 1e-9 {
			t.Errorf("round %d: the ceiling is %v, not %v", i, got, want)
		}
	}
	c.runtime = turns{at(600), at(100)}
	if got := c.ceilings(); math.Abs(got[0]-150) > 1e-9 || math.Abs(got[1]-150) > 1e-9 {
		t.Errorf("with another engine the ceilings are %v", got)
	}
	if got := medianRatio(c.once.figures(measuredTurn.rate), c.copied.figures(measuredTurn.rate)); math.Abs(got-0.375) > 1e-9 {
		t.Errorf("the scorer is %v of the copy", got)
	}
}

func TestJudge(t *testing.T) {
	least, none := 0.8, 0.0
	budgets := []scenario.Budget{{Figure: figureOnce, Least: &least}, {Figure: figureLost, Most: &none}, {Figure: figurePython, Least: &least}}
	absent := map[string]string{figurePython: "Python is not installed"}
	for _, c := range []struct {
		once, lost     float64
		missed, broken bool
	}{{0.9, 0, false, false}, {0.7, 0, true, false}, {0.9, 2, true, true}} {
		o := scoreOutcome{Figures: map[string]float64{figureOnce: c.once, figureLost: c.lost}}
		if err := o.checkBudgets(budgets, absent); err != nil {
			t.Fatal(err)
		}
		if o.budgetMissed() != c.missed || o.auditFailed() != c.broken {
			t.Errorf("%+v: missed %v, broken %v", c, o.budgetMissed(), o.auditFailed())
		}
		full, short := (&scoreReport{Scenarios: []scoreOutcome{o}}).checkBudgets(scorePlan{}), (&scoreReport{Scenarios: []scoreOutcome{o}}).checkBudgets(scorePlan{smoke: true})
		if (full != nil) != (c.missed || c.broken) || (short != nil) != c.broken || c.missed && !c.broken && !errors.Is(full, errMissed) {
			t.Errorf("%+v: a full run ends with %v, a short one with %v", c, full, short)
		}
	}
	if err := (&scoreOutcome{Figures: map[string]float64{}}).checkBudgets(budgets, nil); err == nil {
		t.Error("a budget of what is not measured passes")
	}
}

func TestCutPosition(t *testing.T) {
	for _, c := range []struct {
		id        string
		partition int
		offset    int64
		bad       bool
	}{{"in/3/17", 3, 17, false}, {"in/0/0", 0, 0, false}, {"out/3/17", 0, 0, true}, {"in/3", 0, 0, true}, {"in/x/1", 0, 0, true}, {"", 0, 0, true}} {
		p, o, err := cutPosition(c.id)
		if (err != nil) != c.bad || !c.bad && (p != c.partition || o != c.offset) {
			t.Errorf("%q is partition %d, offset %d: %v", c.id, p, o, err)
		}
	}
	if id := string(task.AppendPosition(nil, "in", 3, 17)); id != "in/3/17" {
		t.Errorf("the position is %s", id)
	}
}

// toyWorld has a stream whose events are all on one partition.
func toyWorld(events int) *scoreBench {
	f := fleet.Fleet{Models: 3, Network: fleet.Network{8, 4, 3}, Kind: fleet.KindDigits, Spread: fleet.Evenly}
	w := &scoreBench{Scenario: &scenario.Scenario{Network: f.Network}, fleet: f, places: &offsetEvents{}}
	for i := range events {
		w.places.note(broker.Receipt{Partition: 2, Offset: int64(i)}, i, nil)
	}
	return w
}

// scoredEvent returns the correct output of an event by a version.
func scoredEvent(w *scoreBench, number, version int) *broker.Incoming {
	keys := w.fleet.Keys()
	key := 0
	for range number + 1 {
		key = keys.Next()
	}
	likely := w.fleet.Network.Answers(fleet.Seed(key, version), w.fleet.Bodies()[number].Row)
	best := slices.Index(likely, slices.Max(likely))
	return &broker.Incoming{View: broker.View{ID: fmt.Sprintf("in/2/%d", number), Type: "tidemill.scored", Subject: fleet.Key(key),
		Extensions: []broker.Attribute{{Name: "model", Value: fleet.Model(key)}, {Name: "modelversion", Value: fmt.Sprint(version)}},
		Data:       fmt.Appendf(nil, `{"label":%q,"score":%.6f}`, w.fleet.Network.Labels()[best], likely[best])}}
}

func TestAudit(t *testing.T) {
	wrongModel := func(e *broker.Incoming) { e.Extensions[0].Value = "load/bot-99" }
	wrongLabel := func(e *broker.Incoming) { e.Data = []byte(`{"label":"intent-99","score":0.99999}`) }
	for _, c := range []struct {
		name  string
		of    []int // inputs that have outputs
		spoil func(*broker.Incoming)
		want  auditCounts
	}{
		{"all of them", []int{0, 1, 2}, nil, auditCounts{outputs: 3, checked: 1}},
		{"later ones are not there yet", []int{0}, nil, auditCounts{outputs: 1, checked: 1}},
		{"one was passed over", []int{0, 2}, nil, auditCounts{outputs: 2, checked: 1, lost: 1}},
		{"one came twice", []int{0, 1, 1}, nil, auditCounts{outputs: 3, checked: 1, twice: 1}},
		{"one of no input", []int{0, 5}, nil, auditCounts{outputs: 2, checked: 1, wrong: 1}},
		{"by another model", []int{0}, wrongModel, auditCounts{outputs: 1, wrong: 1}},
		{"another label", []int{0}, wrongLabel, auditCounts{outputs: 1, checked: 1, wrong: 1}},
	} {
		w := toyWorld(4)
		a, err := w.newAudit()
		if err != nil {
			t.Fatal(err)
		}
		for _, number := range c.of {
			e := scoredEvent(w, number, 1)
			if c.spoil != nil {
				c.spoil(e)
			}
			a.output(e)
		}
		a.findLost()
		if a.counts != c.want || (a.first != nil) != (c.want.lost+c.want.twice+c.want.wrong > 0) {
			t.Errorf("%s: %+v, %v", c.name, a.counts, a.first)
		}
	}
}

func TestOracleToleratesATie(t *testing.T) {
	w := toyWorld(1)
	o, err := w.newOracle()
	if err != nil {
		t.Fatal(err)
	}
	likely, err := o.answers(0, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	best := slices.Index(likely, slices.Max(likely))
	right := score.Scored{Label: o.labels[best], Score: likely[best] + tolerance/2, Scores: map[string]float64{o.labels[0]: likely[0] - tolerance/2}}
	if err := o.check(&right, 0, 1, 1); err != nil {
		t.Error(err)
	}
	if err := o.check(&right, 0, 1, 2); err == nil {
		t.Error("another version would say the same")
	}
	other := right
	other.Scores = map[string]float64{o.labels[0]: likely[0] + 2*tolerance}
	if err := o.check(&other, 0, 1, 1); err == nil {
		t.Error("a wrong score passes")
	}
}

func TestSwapsJudge(t *testing.T) {
	promoted := time.Date(2026, 11, 22, 10, 0, 0, 5e8+300, time.UTC)
	for _, c := range []struct {
		name    string
		version int
		newest  int
		at      time.Time
		bad     bool
	}{
		{"the same version", 1, 1, promoted, false},
		{"the next, behind its promotion", 2, 1, promoted.Add(time.Millisecond), false},
		{"the next, in the same millisecond", 2, 1, promoted.Truncate(time.Millisecond), false},
		{"the next, before its promotion", 2, 1, promoted.Add(-time.Millisecond), true},
		{"one that nobody promoted", 3, 1, promoted, true},
		{"back to an older one", 1, 2, promoted.Add(time.Second), true},
	} {
		s := &swapBench{}
		s.promoted[0], s.first[0] = map[int]time.Time{2: promoted}, map[int]time.Time{}
		newest := c.newest
		s.checkVersion(&broker.Incoming{Time: c.at}, 0, c.version, &newest)
		if (s.noChamp > 0) != c.bad {
			t.Errorf("%s: %d by no champion, %v", c.name, s.noChamp, s.blamed)
		}
		if first, ok := s.first[0][2]; !c.bad && c.version == 2 && (!ok || !first.Equal(c.at)) {
			t.Errorf("%s: the first output was at %v", c.name, first)
		}
	}
}

func TestWhichScenarios(t *testing.T) {
	names := func(p scorePlan) string {
		all, err := p.scenarios()
		if err != nil {
			return err.Error()
		}
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		return strings.Join(names, " ")
	}
	for _, c := range []struct {
		p    scorePlan
		want string
	}{
		{scorePlan{}, "bots cache ffnn infer latency one peers swap ten-thousand text trees trial"},
		{scorePlan{smoke: true}, "bots latency trees"},
		{scorePlan{only: "swap,bots"}, "bots swap"},
		{scorePlan{only: "swap", smoke: true}, "swap"},
		{scorePlan{only: "swap,botz"}, `there is no scenario "botz"; loadtest/scenarios has a file for each`},
	} {
		if got := names(c.p); got != c.want {
			t.Errorf("%+v: %s", c.p, got)
		}
	}
}

func TestBytesIn(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "1GiB": 1 << 30, "2GiB": 2 << 30, "1MB": -1, "GiB": -1, "0GiB": -1} {
		n, err := bytesIn(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || n != want) {
			t.Errorf("%q is %d: %v", text, n, err)
		}
	}
}

// The report has every budget's verdict, and its chart can be drawn.
func TestReport(t *testing.T) {
	least := 0.8
	o := scoreOutcome{Name: "bots", About: "many", Figures: map[string]float64{figureOnce: 0.5, figureCeiling: 100},
		Rows: []scoreRow{{Name: "exactly once", PerSecond: 50, Ours: true}, {Name: inferenceNative, PerSecond: 5000, Part: true}}}
	if err := o.checkBudgets([]scenario.Budget{{Figure: figureOnce, Least: &least}, {Figure: figurePython, Least: &least}}, map[string]string{figurePython: "Python is not installed"}); err != nil {
		t.Fatal(err)
	}
	slow := scoreOutcome{Name: "latency", Figures: map[string]float64{"p50": 3.5}}
	if err := slow.checkBudgets([]scenario.Budget{{Figure: "p50", Most: &least, Unit: " ms"}}, nil); err != nil {
		t.Fatal(err)
	}
	var table, drawn bytes.Buffer
	o.print(&table)
	for _, said := range []string{"missed", "not measured: Python is not installed", "≥ 0.8", "exactly once"} {
		if !strings.Contains(table.String(), said) {
			t.Errorf("the table does not say %q:\n%s", said, &table)
		}
	}
	if err := (&scoreReport{Scenarios: []scoreOutcome{o, slow}}).draw(&drawn); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(drawn.String(), "ceiling 100") || strings.Contains(drawn.String(), inferenceNative) || !strings.Contains(drawn.String(), "3.5") {
		t.Error("the chart does not show what was measured")
	}
}
