package dashboard

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

func approvalPages() []*page {
	return []*page{{path: "/ui/approvals", nav: "/ui/approvals", title: named("Approvals and commands"), main: still(showApprovalsPage), regions: []region{
		part("waiting", "approvals", loadWaiting, showWaiting),
		part("freezes", "commands", asked[api.Promotions]("/api/v1/promotions"), showFreezes),
		part("pins", "approvals", loadPins, showPins),
		part("paused", "commands", loadPaused, showPaused),
		part("commands", "commands approvals", loadCommandLog, showCommandLog),
	}}}
}

func showApprovalsPage(v *view) Node {
	return list(h.H1(say(v.Title)), v.Region("waiting"), h.Div(h.Class("thirds"), v.Region("freezes"), v.Region("paused"), v.Region("pins")), v.Region("commands"))
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
	atOnce(len(found), func(i int) { found[i], failed[i] = details(v, &models.Models[i]) })
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

func loadWaiting(v *visit) (modelPageOf[waitingVersion], error) {
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

func showWaiting(v *visit, p modelPageOf[waitingVersion]) Node {
	title := h.H2(say("Versions that wait for a person "), quiet(say(count(p.Total))))
	if len(p.Rows) == 0 {
		return list(title, emptyPage(nothing(say("No version waits. Versions wait if a recipe promotes by hand, if promotions are frozen, or if the champion is pinned.")), "versions", p.NextURL, p.First))
	}
	return list(title, note(say("Promote a version, or refuse it. If you do neither, the next version that is promoted replaces it.")),
		scroll("rows models", heads("Version", "Made", "Gate", "Lead in accuracy", "Why it waits", "Act"), rows(each(p.Rows, func(w *waitingVersion) Node {
			champion := "no champion"
			if w.Champion != 0 {
				champion = "champion " + strconv.Itoa(w.Champion)
			}
			return row(titled(w.Model), rowName(modelLink(w.Model, w.Number)), cell(v.ago(w.At)), cell(clausesOf(w.Judgement), h.Div(metricsLine(w.Values))),
				cell(leadOf(w.Lead), h.Div(h.Class("none"), say(champion))), cell(whyWaiting(w.Judgement)),
				buttons(v.Act("promote", "model", w.Model, "version", strconv.Itoa(w.Number), "basis", strconv.Itoa(w.Champion)), say(" "),
					v.Act("refuse", "model", w.Model, "version", strconv.Itoa(w.Number), "basis", strconv.Itoa(w.Champion))))
		}))), pager("versions", p.NextURL, p.First))
}

// clausesOf shows the clauses of a gate in little room.
func clausesOf(j *tidemill.Judgement) Node {
	switch {
	case j == nil:
		return quiet(say("not judged"))
	case len(j.Clauses) == 0:
		return quiet(say("no gate"))
	}
	return each(j.Clauses, func(c *tidemill.Clause) Node {
		class, result := "badge bad", "failed"
		if c.Passed {
			class, result = "badge good", "passed"
		}
		return h.Div(h.Span(h.Class(class), h.Span(h.Class("hidden"), say(result))), h.Code(say(titled(c.Text))), when(c.Note != "", say(" "), quiet(say(titled(c.Note)))))
	})
}

func leadOf(e *tidemill.Estimate) Node {
	if e == nil {
		return quiet(say("not measured"))
	}
	return together(h.Strong(say(signed(e.Value))), say(" "), quiet(say(signed(e.Low)+" to "+signed(e.High))))
}

func whyWaiting(j *tidemill.Judgement) Node {
	if j == nil {
		return nil
	}
	why := "its gate passed"
	if j.Hold != "" {
		why = titled(j.Hold)
	}
	return list(say(why), when(j.Lacks, h.Div(badge("waiting"), say(" Something has to be installed first."))))
}

func showFreezes(v *visit, p *api.Promotions) Node {
	parts := list(h.H2(say("Freezes")), nothing(say("No promotions are frozen.")))
	if len(p.Frozen) > 0 {
		parts = list(h.H2(say("Freezes")), h.Ul(h.Class("log-list"), each(p.Frozen, func(f *api.Freeze) Node {
			of, thaw := Node(text(f.Recipe)), v.Act("thaw", "recipe", f.Recipe)
			if f.Recipe == tidemill.AllRecipes {
				of, thaw = say("all recipes"), v.Act("thaw")
			}
			return h.Li(badge("frozen"), say(" "), of, say(", "), v.ago(f.Since), by(f.By), because(f.Reason), say(" "), thaw)
		})))
	}
	return list(parts, actions(v.Act("freeze")))
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
	return askVersions(v, model, strconv.Itoa(version))
}

// pinnedModel is a model whose champion is pinned.
type pinnedModel struct {
	Name     string
	Champion int
	Newest   int
	Pin      fold.Pin
}

func loadPins(v *visit) (modelPageOf[pinnedModel], error) {
	return detailed(v, "pinned", "pins", func(v *visit, m *api.ModelShown) (*pinnedModel, error) {
		whole, err := askVersion(v, m.Name, m.Newest)
		if err != nil || whole.Pin == nil {
			return nil, err
		}
		return &pinnedModel{m.Name, whole.Champion, whole.Last, *whole.Pin}, nil
	})
}

func showPins(v *visit, p modelPageOf[pinnedModel]) Node {
	title := h.H2(say("Pins "), quiet(say(count(p.Total))))
	if len(p.Rows) == 0 {
		return list(title, emptyPage(nothing(say("No champion is pinned.")), "pins", p.NextURL, p.First))
	}
	return list(title, h.Ul(h.Class("log-list"), each(p.Rows, func(m *pinnedModel) Node {
		return h.Li(modelLink(m.Name, m.Champion), say(", "), v.ago(m.Pin.At), by(m.Pin.By), because(m.Pin.Reason),
			when(m.Newest != m.Champion, say(" "), quiet(say("newest is "+strconv.Itoa(m.Newest)))), say(" "), v.Act("unpin", "model", m.Name))
	})), pager("pins", p.NextURL, p.First))
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

func loadPaused(v *visit) (*pausedList, error) {
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
	return &l, nil
}

func showPaused(v *visit, l *pausedList) Node {
	parts := list(h.H2(say("Paused")), each(l.Notes, func(text *string) Node { return h.P(h.Class("problem"), say(titled(*text))) }))
	if len(l.Paused) == 0 {
		return list(parts, nothing(say("Nothing is paused.")))
	}
	return list(parts, h.Ul(h.Class("log-list"), each(l.Paused, func(p *pausedThing) Node {
		return h.Li(badge("paused"), say(" "+p.Kind+" "), anchor(p.URL, text(p.Name)), say(", "), v.ago(p.Since), by(p.By), say(" "), v.Act("resume-"+p.Kind, p.Kind, p.Name))
	})))
}

// commandLog is a page of the commands of people.
type commandLog struct {
	api.Commands
	NextURL string
	First   string
}

func loadCommandLog(v *visit) (*commandLog, error) {
	q := v.pick("after")
	q.Set("limit", "50")
	commands, err := get[api.Commands](v, "/api/v1/commands", q)
	l := commandLog{Commands: commands}
	l.NextURL, l.First = v.pageURLs("after", commands.Next)
	return &l, err
}

func showCommandLog(v *visit, l *commandLog) Node {
	if len(l.Commands.Commands) == 0 {
		return list(h.H2(say("Who did what")), emptyPage(nothing(say("No commands yet. "), anchor("/ui/act", say("All commands")), say(" that a person can give.")), "commands", l.NextURL, l.First))
	}
	return list(h.H2(say("Who did what")), scroll("rows models", heads("When", "Who", "What", "Why"), rows(each(l.Commands.Commands, func(c *api.Command) Node {
		who, what := dash(), say(titled(c.Done))
		if c.By != "" {
			who = text(c.By)
		}
		if strings.HasPrefix(c.Type, "tidemill.model.") {
			what = anchor(modelURL(c.Subject), what)
		}
		return row(titled(c.Subject)+" "+strconv.FormatInt(c.At.UnixNano(), 10), cell(v.ago(c.At)), cell(who), rowName(what), cell(say(titled(c.Reason))))
	}))), pager("commands", l.NextURL, l.First))
}
