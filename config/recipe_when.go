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
	// waitFactor times its debounce is the default for how long an entry can delay a run, so
	// that a slow trickle of events cannot delay it for ever.
	waitFactor  = 10
	maxMaxWait  = waitFactor * maxWait
	maxPriority = 1000
)

// whenRead is an entry and its place, for checks that need other files.
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
	w.given = v.presentFields(append(d.filterFields(&w.When, &types),
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
			v.child(key, v.nodeAt(key)).problem("is for the ticks of a schedule; add schedule, or remove the key")
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
		at.child("maxWait", at.nodeAt("maxWait")).problem("limits the delay by debounce, and there is no debounce; write it, or remove the key")
	case w.MaxWait == 0:
		w.MaxWait = waitFactor * w.Debounce
	case w.MaxWait < w.Debounce:
		at.child("maxWait", at.nodeAt("maxWait")).problem("%s is less than debounce, which is %s", showSpan(w.MaxWait), showSpan(w.Debounce))
	}
}

// ofSchedule sets the filter for a schedule's ticks.
func (w *whenRead) ofSchedule() {
	for _, key := range []string{"type", "where", "stream"} {
		if w.given[key] {
			w.at.child(key, w.at.nodeAt(key)).problem("cannot be combined with schedule, which means all of its ticks; remove one of the two, and to filter ticks write type: %s and where: \"schedule = 'NAME' AND …\"", tidemill.TypeScheduleTick)
		}
	}
	if w.given["spread"] && !w.given["each"] {
		w.at.child("spread", w.at.nodeAt("spread")).problem("distributes the runs of several keys over a time; add each: key, or write spread in the schedule")
	}
	w.When = When{Types: []string{tidemill.TypeScheduleTick}, Where: "schedule = '" + w.Schedule + "'"}
}

// checkSchedules checks the entries of a recipe against the schedules of all files. A tick
// without a key starts nothing for a recipe that has keys.
func (d *draft) checkSchedules(r Recipe, whens []whenRead) {
	for _, w := range whens {
		if w.Schedule == "" {
			continue
		}
		at := w.at.child("schedule", w.at.nodeAt("schedule"))
		s, known := d.scheduleOf[w.Schedule]
		if !known {
			at.problem("%s", d.unknownSchedule(w.Schedule))
			continue
		}
		keyed := s.Each || len(s.Keys) > 0
		switch {
		case w.Each && keyed:
			w.at.child("each", w.at.nodeAt("each")).problem("the schedule %s ticks for each key itself; remove the key", w.Schedule)
		case w.Each && r.Key == KeyNone:
			w.at.child("each", w.at.nodeAt("each")).problem("the recipe has no keys (key: none); remove the key")
		case !w.Each && !keyed && r.Key != KeyNone:
			at.problem("%s ticks without a key, and the recipe makes something for each key; add each: key", show(w.Schedule))
		}
	}
}

func (d *draft) unknownSchedule(name string) string {
	if near, ok := spelling.Nearest(name, slices.Sorted(maps.Keys(d.scheduleOf))); ok {
		return "there is no schedule " + show(name) + "; did you mean " + show(near) + "?"
	}
	return "there is no schedule " + show(name) + "; write it under schedules"
}

// triggerOf returns the trigger that delivers events to a recipe. Users see it in the list of
// triggers. No user's trigger can have its name, because their names have no dot.
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
	// FunctionTrain is Tidemill's function that asks for runs.
	FunctionTrain = "train"
)

// checkLoop reports entries by which a recipe starts itself for ever: they match an event that
// each of its own runs publishes. It reports only loops that are certain.
func (r *Recipe) checkLoop(w whenRead) {
	if w.Schedule != "" {
		return
	}
	for _, own := range r.publishes() {
		if w.mayGet(own["type"]) && certainlyMatches(w.Where, own) {
			w.at.problem("matches the %s of the recipe's own runs, so that each would start the next for ever; add where, such as %s", own["type"], r.otherwise(own))
			return
		}
	}
}

// publishes returns the events that every run causes, as far as the file shows.
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

// otherwise returns a filter that excludes such an event.
func (r *Recipe) otherwise(own map[string]string) string {
	if own["type"] == tidemill.TypeNewData {
		return "\"dataset LIKE 'raw/%'\""
	}
	return "\"recipe <> '" + r.Name + "'\""
}

// mayGet reports whether an entry gets events of a type. An entry without types gets every
// event of its stream.
func (w *RecipeWhen) mayGet(typ string) bool {
	if len(w.Types) > 0 {
		return slices.Contains(w.Types, typ)
	}
	e, _ := tidemill.Lookup(typ)
	return e.Stream == w.Stream
}

// certainlyMatches reports whether a filter matches every event with the known attributes,
// whatever its other attributes are.
func certainlyMatches(where string, known map[string]string) bool {
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
		return is && patternRegexp(x.Pattern).MatchString(text)
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

// patternRegexp returns a CESQL pattern as a regular expression. For a pattern with an escape it
// returns an expression that matches nothing, so that we need not be sure of its meaning.
func patternRegexp(pattern string) *regexp.Regexp {
	if strings.Contains(pattern, `\`) {
		return regexp.MustCompile(`$^x`)
	}
	quoted := regexp.QuoteMeta(pattern)
	return regexp.MustCompile("(?s)^" + strings.NewReplacer("%", ".*", "_", ".").Replace(quoted) + "$")
}
