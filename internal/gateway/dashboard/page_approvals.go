package dashboard

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

func approvalPages() []*page {
	return []*page{{path: "/ui/approvals", file: "approvals", nav: "/ui/approvals", title: named("Approvals and commands"), regions: []region{
		{"waiting", "approvals", loadWaiting},
		{"freezes", "commands", func(v *visit) (any, error) { return get[api.Promotions](v, "/api/v1/promotions", nil) }},
		{"pins", "approvals", loadPins},
		{"paused", "commands", loadPaused},
		{"commands", "commands approvals", loadCommandLog},
	}}}
}

// rowsOfModels is the number of models whose details a part of the page asks for.
const rowsOfModels = 10

// modelPageOf is a page of models with their details.
type modelPageOf[T any] struct {
	Rows    []T
	Total   int
	NextURL string
	First   string
}

// detailed returns a page of the models that a filter selects, each with the details that a function gets.
// A model that has changed meanwhile is left out.
func detailed[T any](v *visit, filter, parameter string, details func(*visit, *api.ModelShown) (*T, error)) (p modelPageOf[T], err error) {
	q := url.Values{filter: {"true"}, "limit": {strconv.Itoa(rowsOfModels)}}
	if after := v.query(parameter); after != "" {
		q.Set("after", after)
	}
	models, err := get[api.Models](v, "/api/v1/models", q)
	if err != nil {
		return p, err
	}
	found, failed := make([]*T, len(models.Models)), make([]error, len(models.Models))
	var asking sync.WaitGroup
	for i := range models.Models {
		asking.Go(func() { found[i], failed[i] = details(v, &models.Models[i]) })
	}
	asking.Wait()
	for _, row := range found {
		if row != nil {
			p.Rows = append(p.Rows, *row)
		}
	}
	p.Total = models.Total
	p.NextURL, p.First = v.pageURLs(parameter, models.Next)
	return p, errors.Join(slices.DeleteFunc(failed, isNotFound)...)
}

// waitingVersion is a version that waits for a person.
type waitingVersion struct {
	api.ModelVersion
	Champion int
	Values   []metric           // values in the clauses of the gate
	Lead     *tidemill.Estimate // lead over the champion that the run measured
}

func loadWaiting(v *visit) (any, error) {
	return detailed(v, "awaiting", "waiting", func(v *visit, m *api.ModelShown) (*waitingVersion, error) {
		whole, err := askVersion(v, m.Name, m.Newest)
		if err != nil {
			return nil, err
		}
		if n := newestAwaiting(&whole.Model); n != 0 && n != m.Newest {
			if whole, err = askVersion(v, m.Name, n); err != nil {
				return nil, err
			}
		}
		w := waitingVersion{ModelVersion: whole.All[0], Champion: whole.Champion}
		if w.State != tidemill.VersionAwaiting {
			return nil, nil
		}
		if r := w.Measured; r != nil && r.Champion != nil {
			w.Lead = r.Champion.Lead
		}
		if w.Judgement != nil {
			w.Values = gateValues(w.Judgement)
		}
		return &w, nil
	})
}

// gateValues returns the values that the clauses of a gate have read, each once.
func gateValues(j *tidemill.Judgement) []metric {
	values := map[string]float64{}
	for _, c := range j.Clauses {
		maps.Copy(values, c.Values)
	}
	return sortedMetrics(values, nil)
}

// newestAwaiting returns the newest version that waits for a person; 0 if none does.
func newestAwaiting(m *fold.Model) int {
	for _, held := range slices.Backward(m.Versions) {
		if held.State == tidemill.VersionAwaiting {
			return held.Number
		}
	}
	return 0
}

// askVersion gets a model with one version and its report.
func askVersion(v *visit, model string, version int) (api.ModelWhole, error) {
	return get[api.ModelWhole](v, "/api/v1/model", url.Values{"model": {model}, "version": {strconv.Itoa(version)}})
}

// pinnedModel is a model whose champion is pinned.
type pinnedModel struct {
	Name     string
	Champion int
	Newest   int
	Pin      fold.Pin
}

func loadPins(v *visit) (any, error) {
	return detailed(v, "pinned", "pins", func(v *visit, m *api.ModelShown) (*pinnedModel, error) {
		whole, err := askVersion(v, m.Name, m.Newest)
		if err != nil || whole.Pin == nil {
			return nil, err
		}
		return &pinnedModel{m.Name, whole.Champion, whole.Last, *whole.Pin}, nil
	})
}

// pausedThing is a thing that a person has paused.
type pausedThing struct {
	Kind, Name, URL, By string
	Since               *time.Time
}

// pausedList has the paused things, and the parts that the API could not give.
type pausedList struct {
	Paused []pausedThing
	Notes  []string
}

func loadPaused(v *visit) (any, error) {
	var l pausedList
	note := func(what string, err error) {
		if err != nil {
			l.Notes = append(l.Notes, what+": "+err.Error())
		}
	}
	add := func(kind, name, url, by string, since *time.Time) {
		if since != nil || by != "" {
			l.Paused = append(l.Paused, pausedThing{kind, name, url, by, since})
		}
	}
	pools, err := get[api.Pools](v, "/api/v1/pools", nil)
	note("pools", err)
	for _, p := range pools.Pools {
		add("pool", p.Name, "/ui/runs", p.PausedBy, p.PausedSince)
	}
	recipes, err := get[api.Recipes](v, "/api/v1/recipes", nil)
	note("recipes", err)
	for _, r := range recipes.Recipes {
		add("recipe", r.Name, recipeURL(r.Name), r.PausedBy, r.PausedSince)
	}
	triggers, err := get[api.Triggers](v, "/api/v1/triggers", nil)
	note("triggers", err)
	for i := range triggers.Triggers {
		t := &triggers.Triggers[i]
		add("trigger", t.Name, triggerURL(t.Name), t.PausedBy, t.PausedSince)
	}
	schedules, err := get[api.Schedules](v, "/api/v1/schedules", nil)
	note("schedules", err)
	for _, s := range schedules.Schedules {
		add("schedule", s.Name, "/ui/triggers", s.PausedBy, s.PausedSince)
	}
	return l, nil
}

// commandLog is a page of the commands of people.
type commandLog struct {
	api.Commands
	NextURL string
	First   string
}

func loadCommandLog(v *visit) (any, error) {
	q := v.pick("after")
	q.Set("limit", "50")
	commands, err := get[api.Commands](v, "/api/v1/commands", q)
	l := commandLog{Commands: commands}
	l.NextURL, l.First = v.pageURLs("after", commands.Next)
	return l, err
}
