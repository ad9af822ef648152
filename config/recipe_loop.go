package config

import (
	"regexp"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/internal/cesql"
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
