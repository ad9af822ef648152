package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// foldedRun is a run by the facts alone.
type foldedRun struct {
	of      string         // recipe and key
	causes  int            // number that its starts name; one that has not seen all does not count
	started map[int]bool   // attempts
	ends    map[int]string // outcome of each attempt for the run, such as retrying
	results map[int]string // outcome of each attempt
	model   string         // model that its last end names; empty if it makes none
	last    int            // place of its last end among the facts
	wrong   []string       // facts that do not fit the ones before
}

// state returns the state of the run: the end of its newest attempt.
func (r *foldedRun) state() string {
	newest := 0
	for n := range r.started {
		newest = max(newest, n)
	}
	if end := r.ends[newest]; end != "" {
		return end
	}
	return "running"
}

// folded returns the runs that have begun, by name. Only the first start and the first end of an attempt count: two
// controllers may start the same one, and a controller that was stalled may write late that the attempt was lost.
func (o *oracle) folded() map[string]*foldedRun {
	all := map[string]*foldedRun{}
	for i := range o.records["facts"] {
		r := &o.records["facts"][i]
		name := r.head["ce_run"]
		n, _ := strconv.Atoi(r.head["ce_attempt"])
		var d struct {
			Causes  int
			Outcome string
		}
		_ = json.Unmarshal([]byte(r.value), &d) // a fact without an outcome differs from the gateway's
		one := all[name]
		if one == nil {
			one = &foldedRun{of: r.head["ce_recipe"] + " " + r.key(), started: map[int]bool{}, ends: map[int]string{}, results: map[int]string{}}
		}
		switch r.typ() {
		case "tidemill.run.started":
			if !one.started[n] && n > 1 && one.ends[n-1] != "retrying" {
				one.wrong = append(one.wrong, fmt.Sprintf("attempt %d of run %s was started after attempt %d ended %q", n, name, n-1, one.ends[n-1]))
			}
			one.started[n], one.causes, all[name] = true, max(one.causes, d.Causes), one
		case "tidemill.run.finished", "tidemill.run.cancelled":
			if !one.started[n] {
				one.wrong = append(one.wrong, fmt.Sprintf("attempt %d of run %s has ended and was not started", n, name))
			}
			if one.ends[n] == "" {
				one.ends[n], one.results[n], one.model, one.last = r.head["ce_outcome"], d.Outcome, r.head["ce_model"], i
			}
			all[name] = one
		}
	}
	return all
}

// ran checks that each cause has one run, and that each run has ended.
func (o *oracle) ran() (all []string) {
	runs := map[string][]string{}
	for name, r := range o.w.agents.runs {
		for cause := range r.causes {
			runs[cause] = append(runs[cause], name)
		}
	}
	folded := o.folded()
	lost := o.mayBeLost("events")
	causes := slices.Clone(o.w.posts.all)
	for i := range o.records["events"] {
		if r := &o.records["events"][i]; r.typ() == "new-data" {
			causes = append(causes, &post{id: r.id(), typ: r.typ(), key: r.key(), acked: true})
		}
	}
	for _, p := range causes {
		if p.typ != "bot-created" && p.typ != "new-data" {
			continue
		}
		switch n := len(runs[p.id]); {
		case n > 1:
			slices.Sort(runs[p.id])
			all = append(all, fmt.Sprintf("%s %s of %s has %d runs: %v", p.typ, p.id, p.key, n, runs[p.id]))
		case n == 0 && p.acked && !lost[p.id]:
			all = append(all, fmt.Sprintf("%s %s of %s has no run", p.typ, p.id, p.key))
		case n == 1:
			name := runs[p.id][0]
			if r := folded[name]; r == nil || r.state() == "running" || r.state() == "retrying" {
				all = append(all, fmt.Sprintf("run %s of %s has not ended: %+v, its last attempt was told %q", name, p.key, r, o.w.agents.runs[name].ended))
			}
		}
	}
	return all
}

// begun checks that each transition has its fact: each attempt that an agent ran its start, each end that an agent was told its
// end, and each model of a successful run its registration.
func (o *oracle) begun() (all []string) {
	folded, registered := o.folded(), map[string]string{}
	for i := range o.records["facts"] {
		if r := &o.records["facts"][i]; r.typ() == "tidemill.model.registered" {
			registered[r.head["ce_run"]] = r.head["ce_model"]
		}
	}
	for name, seen := range o.w.agents.runs {
		r := folded[name]
		if r == nil {
			all = append(all, fmt.Sprintf("an agent ran an attempt of run %s, which has no fact", name))
			continue
		}
		for attempt := range seen.labels {
			if n, _ := strconv.Atoi(attempt); !r.started[n] {
				all = append(all, fmt.Sprintf("an agent ran attempt %s of run %s, which has no start", attempt, name))
			}
		}
		if seen.ended.Ended() && string(seen.ended) != r.state() {
			all = append(all, fmt.Sprintf("an agent was told that run %s is %s, and its facts say %s", name, seen.ended, r.state()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(folded)) {
		r := folded[name]
		all = append(all, r.wrong...)
		if made := r.state() == "succeeded"; made && registered[name] != r.model || !made && registered[name] != "" {
			all = append(all, fmt.Sprintf("run %s is %s with model %q, and model %q was registered", name, r.state(), r.model, registered[name]))
		}
	}
	for model, of := range o.decisions() {
		for _, d := range of {
			if d.kind != "rolled-back" && registered[d.Origin.Run] != model {
				all = append(all, fmt.Sprintf("version %d of %s is %s, and its run %q registered model %q", d.Version, model, d.kind, d.Origin.Run, registered[d.Origin.Run]))
			}
		}
	}
	return all
}

// listed returns the runs that gateways list, once all have ended: the ten newest of each recipe and key.
func (o *oracle) listed() map[string]*foldedRun {
	all, of := o.folded(), map[string][]string{}
	for name, r := range all {
		of[r.of] = append(of[r.of], name)
	}
	for _, names := range of {
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(all[b].last, all[a].last) })
		for _, name := range names[min(10, len(names)):] {
			delete(all, name)
		}
	}
	return all
}

// sameRuns checks that a gateway's answer about the runs is the same as the facts.
func (o *oracle) sameRuns(text string) (all []string) {
	type attempt struct {
		Number  int
		Outcome string
	}
	var d struct {
		Runs []struct {
			ID, State string
			Causes    int
			Attempts  []attempt
		}
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return []string{fmt.Sprintf("read the runs of a gateway: %v: %.300s", err, text)}
	}
	listed := o.listed()
	for _, got := range d.Runs {
		r := listed[got.ID]
		if r == nil {
			all = append(all, fmt.Sprintf("a gateway lists run %+v, which is not among the newest ones that have facts", got))
			continue
		}
		var want []attempt
		for _, n := range slices.Sorted(maps.Keys(r.started)) {
			want = append(want, attempt{n, r.results[n]})
		}
		if got.State != r.state() || got.Causes != r.causes || !slices.Equal(got.Attempts, want) {
			all = append(all, fmt.Sprintf("a gateway reports run %+v, and its facts say %s by %d causes, with attempts %v", got, r.state(), r.causes, want))
		}
	}
	if len(d.Runs) != min(len(listed), mostListed) {
		all = append(all, fmt.Sprintf("a gateway lists %d runs, and %d have facts", len(d.Runs), len(listed)))
	}
	return all
}

// sameModels checks that a gateway's answer about the models is the same as the facts.
func (o *oracle) sameModels(text string) (all []string) {
	type model struct {
		Name             string
		Champion, Newest int
	}
	var d struct{ Models []model }
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return []string{fmt.Sprintf("read the models of a gateway: %v: %.300s", err, text)}
	}
	want := o.decisions()
	for _, got := range d.Models {
		fact := model{Name: got.Name}
		for _, c := range want[got.Name] {
			if fact.Newest = max(fact.Newest, c.Version); c.kind == "promoted" || c.kind == "rolled-back" {
				fact.Champion = c.Champion
			}
		}
		if got != fact {
			all = append(all, fmt.Sprintf("a gateway reports model %+v, and its facts say %+v", got, fact))
		}
	}
	if len(d.Models) != min(len(want), mostListed) {
		all = append(all, fmt.Sprintf("a gateway reports %d models, and %d have facts", len(d.Models), len(want)))
	}
	return all
}

// TestOracleOfRuns plays facts about one run, whose first attempt was lost. Each part of a case leaves facts out or adds some.
func TestOracleOfRuns(t *testing.T) {
	t.Parallel()
	fact := func(typ, attempt, outcome, value string) record {
		return record{value: value, head: map[string]string{"ce_type": "tidemill." + typ, "ce_run": "r", "ce_recipe": "intent", "ce_subject": "k", "ce_attempt": attempt, "ce_outcome": outcome, "ce_model": "intent/k"}}
	}
	facts := []record{
		fact("run.started", "1", "", `{"causes":2}`), fact("run.finished", "1", "retrying", `{"outcome":"lost"}`),
		fact("run.started", "2", "", `{"causes":2}`), fact("run.finished", "2", "succeeded", `{"outcome":"succeeded"}`),
		fact("model.registered", "", "", `{}`), fact("model.promoted", "", "", `{"proposal":"p","version":1,"champion":1,"turn":1,"origin":{"run":"r"}}`),
	}
	const run, model = `{"runs":[{"id":"r","state":"succeeded","causes":2,"attempts":[{"number":1,"outcome":"lost"},{"number":2,"outcome":"succeeded"}]}]}`,
		`{"models":[{"name":"intent/k","champion":1,"newest":1}]}`
	for name, c := range map[string]struct {
		facts     []record
		run, more string // answer about runs; an attempt that only an agent has seen
		wrong     int
	}{
		"all is there":                   {facts, run, "2", 0},
		"two controllers start it":       {slices.Insert(slices.Clone(facts), 1, fact("run.started", "1", "", `{"causes":1}`)), run, "2", 0},
		"a late word of the first one":   {slices.Insert(slices.Clone(facts), 4, fact("run.finished", "2", "retrying", `{"outcome":"lost"}`)), run, "2", 0},
		"an attempt without its start":   {facts, run, "3", 1},
		"an end without its start":       {slices.Delete(slices.Clone(facts), 0, 1), run, "2", 3},
		"a start without the end before": {slices.Delete(slices.Clone(facts), 1, 2), run, "2", 2},
		"a success without its model":    {slices.Delete(slices.Clone(facts), 4, 5), run, "2", 2},
		"an answer with another state":   {facts, strings.Replace(run, `"state":"succeeded"`, `"state":"failed"`, 1), "2", 1},
		"an answer without the run":      {facts, `{"runs":[]}`, "2", 1},
		"an answer with another attempt": {facts, strings.Replace(run, "lost", "failed", 1), "2", 1},
	} {
		seen := &ranRun{ended: "succeeded", labels: map[string]string{"1": "", c.more: ""}}
		o := &oracle{w: &world{p: &plan{}, agents: &agents{runs: map[string]*ranRun{"r": seen}}}, records: map[string][]record{"facts": c.facts}}
		if wrong := append(append(o.begun(), o.sameRuns(c.run)...), o.sameModels(model)...); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d complaints", name, wrong, c.wrong)
		}
		if wrong := o.sameModels(strings.Replace(model, `"champion":1`, `"champion":2`, 1)); len(wrong) != 1 {
			t.Errorf("%s: %q, want a complaint about the champion", name, wrong)
		}
	}
}
