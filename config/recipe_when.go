package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/cesql"
	"tidemill.dev/config/spelling"
)

const (
	// waitFactor times its debounce is how long an entry puts a run off at most,
	// so that a drip of events does not for ever.
	waitFactor  = 10
	maxMaxWait  = waitFactor * maxWait
	maxPriority = 1000
)

// whenRead is an entry and where it stands, for checks against other files.
type whenRead struct {
	RecipeWhen
	at    value
	given map[string]bool
}

// readRecipeWhens reads one entry or a list of them.
func (d *draft) readRecipeWhens(v value) []whenRead {
	if v.node.Kind != yaml.SequenceNode {
		return []whenRead{d.readRecipeWhen(v)}
	}
	items := v.items()
	switch {
	case len(items) == 0:
		v.problem("is an empty list, which starts nothing; write filters such as {type: bot-created}, or remove the key")
	case len(items) > maxFilters:
		v.problem("has more than %d entries; one of them may have several types, and OR in its where", maxFilters)
		return nil
	}
	var all []whenRead
	for _, item := range items {
		all = append(all, d.readRecipeWhen(item))
	}
	return all
}

func (d *draft) readRecipeWhen(v value) whenRead {
	w := whenRead{at: v}
	var types []value
	w.given = v.given(append(d.filterFields(&w.When, &types),
		field{"schedule", func(v value) { w.Schedule, _ = v.text() }},
		field{"each", func(v value) { _, w.Each = v.oneOf("key") }},
		field{"spread", readWait(&w.Spread, minSpread, maxSpread)},
		field{"debounce", readWait(&w.Debounce, minWait, maxWait)},
		field{"maxWait", readWait(&w.MaxWait, minWait, maxMaxWait)},
		field{"priority", readInteger(&w.Priority, 0, maxPriority)},
	)...)
	w.checkWaits()
	if w.given["schedule"] {
		w.ofSchedule()
		return w
	}
	for _, key := range []string{"each", "spread"} {
		if w.given[key] {
			v.child(key, v.at(key)).problem("is for the ticks of a schedule; write schedule beside it, or remove the key")
		}
	}
	if !w.given["stream"] {
		v.require(v.node, w.given, "type", "name one or more types of events, a stream, or a schedule")
	}
	w.When.check(types, w.given["stream"])
	return w
}

func (w *whenRead) checkWaits() {
	switch at := w.at; {
	case w.given["maxWait"] && !w.given["debounce"]:
		at.child("maxWait", at.at("maxWait")).problem("bounds how long debounce puts a run off, and there is none; write debounce, or remove the key")
	case w.MaxWait == 0:
		w.MaxWait = waitFactor * w.Debounce
	case w.MaxWait < w.Debounce:
		at.child("maxWait", at.at("maxWait")).problem("%s is less than debounce, which is %s", showSpan(w.MaxWait), showSpan(w.Debounce))
	}
}

// ofSchedule makes the filter of a schedule's ticks.
func (w *whenRead) ofSchedule() {
	for _, key := range []string{"type", "where", "stream"} {
		if w.given[key] {
			w.at.child(key, w.at.at(key)).problem("stands beside schedule, which means all of its ticks; remove one of the two, and to filter ticks write type: %s and where: \"schedule = 'NAME' AND …\"", tidemill.TypeScheduleTick)
		}
	}
	if w.given["spread"] && !w.given["each"] {
		w.at.child("spread", w.at.at("spread")).problem("lays the runs of several keys over a time; write each: key beside it, or spread in the schedule")
	}
	w.When = When{Types: []string{tidemill.TypeScheduleTick}, Where: "schedule = '" + w.Schedule + "'"}
}

// checkSchedules holds the entries of a recipe against the schedules of all
// files: a tick without a key makes nothing of a recipe that has keys.
func (d *draft) checkSchedules(r Recipe, whens []whenRead) {
	for _, w := range whens {
		if w.Schedule == "" {
			continue
		}
		at := w.at.child("schedule", w.at.at("schedule"))
		s, known := d.scheduleOf[w.Schedule]
		if !known {
			at.problem("%s", d.unknownSchedule(w.Schedule))
			continue
		}
		keyed := s.Each || len(s.Keys) > 0
		switch {
		case w.Each && keyed:
			w.at.child("each", w.at.at("each")).problem("the schedule %s ticks for each key itself; remove the key", w.Schedule)
		case w.Each && r.Key == KeyNone:
			w.at.child("each", w.at.at("each")).problem("the recipe has no keys (key: none); remove the key")
		case !w.Each && !keyed && r.Key != KeyNone:
			at.problem("%s ticks without a key, and the recipe makes something for each; write each: key beside it", show(w.Schedule))
		}
	}
}

func (d *draft) unknownSchedule(name string) string {
	if near, ok := spelling.Nearest(name, slices.Sorted(maps.Keys(d.scheduleOf))); ok {
		return "there is no schedule " + show(name) + "; did you mean " + show(near) + "?"
	}
	return "there is no schedule " + show(name) + "; write it under schedules"
}

// triggerOf is the trigger that brings a recipe its events. People see it among
// the others; they cannot take its name, for theirs have no dot.
func triggerOf(r Recipe) Trigger {
	t := Trigger{Name: recipeTrigger + r.Name, Builtin: true, To: Target{Function: FunctionTrain, Recipe: r.Name},
		Delivery: Delivery{Attempts: 30, Backoff: defaultBackoff(), Timeout: 30 * time.Second, Ordered: true, Concurrency: 32}}
	for _, w := range r.When {
		t.When = append(t.When, w.When)
	}
	return t
}

const (
	recipeTrigger = "recipe."
	// FunctionTrain is the function of ours that asks for runs.
	FunctionTrain = "train"
)

// checkLoop finds entries by which a recipe starts itself for ever: that match
// what each of its own runs publishes. It says so only where that is certain.
func (r *Recipe) checkLoop(w whenRead) {
	if w.Schedule != "" {
		return
	}
	for _, own := range r.publishes() {
		if w.mayGet(own["type"]) && surely(w.Where, own) {
			w.at.problem("matches the %s of the recipe's own runs, so that each would start the next for ever; add where, such as %s", own["type"], r.otherwise(own))
			return
		}
	}
}

// publishes are the events that follow from every run, as far as the file tells.
func (r *Recipe) publishes() (all []map[string]string) {
	for _, typ := range []string{tidemill.TypeRunRequested, tidemill.TypeRunStarted, tidemill.TypeRunFinished} {
		all = append(all, map[string]string{"type": typ, tidemill.AttrRecipe: r.Name})
	}
	fill := func(field string) (string, bool) {
		return map[string]string{"key": sample, "recipe": r.Name, "team": r.Team}[field], true
	}
	if r.Makes.Model != "" {
		name, _ := Expand(r.Makes.Model, fill)
		return append(all,
			map[string]string{"type": tidemill.TypeModelRegistered, tidemill.AttrRecipe: r.Name, tidemill.AttrModel: name},
			map[string]string{"type": tidemill.TypeModelPromotionProposed, tidemill.AttrRecipe: r.Name, tidemill.AttrModel: name})
	}
	if r.Makes.Dataset == "" {
		return all
	}
	name, _ := Expand(r.Makes.Dataset, fill)
	return append(all,
		map[string]string{"type": tidemill.TypeNewData, tidemill.AttrDataset: name, tidemill.AttrBranch: r.Makes.Branch},
		map[string]string{"type": tidemill.TypeRunCommitted, tidemill.AttrRecipe: r.Name, tidemill.AttrDataset: name, tidemill.AttrBranch: r.Makes.Branch})
}

// otherwise is a filter that leaves such an event out.
func (r *Recipe) otherwise(own map[string]string) string {
	if own["type"] == tidemill.TypeNewData {
		return "\"dataset LIKE 'raw/%'\""
	}
	return "\"recipe <> '" + r.Name + "'\""
}

// mayGet tells whether an entry looks at events of a type. One that has no type
// gets all of a stream.
func (w *RecipeWhen) mayGet(typ string) bool {
	if len(w.Types) > 0 {
		return slices.Contains(w.Types, typ)
	}
	e, _ := tidemill.Lookup(typ)
	return e.Stream == w.Stream
}

// surely tells whether a filter is certain to match an event of which some
// attributes are known.
func surely(where string, known map[string]string) bool {
	if where == "" {
		return true
	}
	x, err := cesql.ParseCondition(where)
	return err == nil && holds(x, known)
}

func holds(x cesql.Expr, known map[string]string) bool {
	switch x := x.(type) {
	case *cesql.Binary:
		return x.Op == "AND" && holds(x.X, known) && holds(x.Y, known) || x.Op == "OR" && (holds(x.X, known) || holds(x.Y, known)) ||
			x.Op == "=" && (equals(x.X, x.Y, known) || equals(x.Y, x.X, known))
	case *cesql.Like:
		a, ok := x.X.(*cesql.Attribute)
		text, is := known[nameOf(a, ok)]
		return is && likeness(x.Pattern).MatchString(text)
	case *cesql.Exists:
		_, is := known[x.Name]
		return is
	}
	return false
}

func equals(x, y cesql.Expr, known map[string]string) bool {
	a, ok := x.(*cesql.Attribute)
	l, literal := y.(*cesql.Literal)
	text, is := known[nameOf(a, ok)]
	return literal && is && l.Value == text
}

func nameOf(a *cesql.Attribute, ok bool) string {
	if !ok {
		return ""
	}
	return a.Name
}

// likeness is a pattern of CESQL as a regular expression; nothing matches one
// with an escape, so that we do not have to be sure of it.
func likeness(pattern string) *regexp.Regexp {
	if strings.Contains(pattern, `\`) {
		return regexp.MustCompile(`$^x`)
	}
	quoted := regexp.QuoteMeta(pattern)
	return regexp.MustCompile("(?s)^" + strings.NewReplacer("%", ".*", "_", ".").Replace(quoted) + "$")
}
