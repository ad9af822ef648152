package dashboard

import (
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tidemill.dev/api"
)

func fleetPages() []*page {
	return []*page{
		{path: "/{$}", file: "fleet", nav: "/", title: named("Fleet"), regions: []region{
			{"recipes", "fleet", loadFleet},
			{"strip", "fleet", loadStrip},
			{"keys", "fleet", loadKeys},
			{"fresh", "fleet", loadFreshness},
		}},
		{path: "/ui/selected", file: "fleet", nav: "/", title: named("Fleet"), redirect: actOnSelected, load: refuseSelected},
	}
}

// fleetShown is the table of recipes.
type fleetShown struct {
	Recipes []recipeShown
	States  []api.KeyState
	Chosen  string // recipe whose keys the page shows; empty for all
}

// recipeShown is one recipe, with the shares of its states.
type recipeShown struct {
	api.FleetRecipe
	Bar template.HTML
}

func loadFleet(v *visit) (any, error) {
	all, err := get[api.Fleet](v, "/api/v1/fleet", v.pick("stale"))
	if err != nil {
		return nil, err
	}
	f := fleetShown{States: api.KeyStates(), Chosen: v.Q("recipe")}
	for _, r := range all.Recipes {
		f.Recipes = append(f.Recipes, recipeShown{r, shares(&r)})
	}
	return f, nil
}

// freshRow is the time to a fresh model of one recipe, stage by stage.
type freshRow struct {
	Recipe string
	Models int
	Total  *api.Percentiles
	Stages []freshStage
}

// freshStage is one stage; its percentiles are nil if no model has it.
type freshStage struct {
	Name string
	*api.Percentiles
}

func loadFreshness(v *visit) (any, error) {
	all, err := get[api.Freshness](v, "/api/v1/freshness", v.pick("recipe"))
	if err != nil {
		return nil, err
	}
	rows := []freshRow{}
	for _, r := range all.Recipes {
		row := freshRow{Recipe: r.Recipe, Models: r.Models, Total: r.Stages["total"]}
		for _, name := range freshStages() {
			row.Stages = append(row.Stages, freshStage{name, r.Stages[name]})
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// freshStages returns the stages in their order.
func freshStages() (names []string) {
	new(api.FreshStages).Each(func(stage string, _ *float64) {
		if stage != "total" {
			names = append(names, stage)
		}
	})
	return names
}

// FreshStages is freshStages, for templates.
func (v *visit) FreshStages() []string { return freshStages() }

// shares draws the states of a recipe's keys as one bar. The table next to it has the numbers.
func shares(r *api.FleetRecipe) template.HTML {
	const width = 160
	if r.Total == 0 {
		return never
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="shares" viewBox="0 0 %d 10" preserveAspectRatio="none" role="img" aria-label="%s">`, width, esc(stateSentence(r)))
	x := 0.0
	for _, s := range api.KeyStates() {
		part := float64(r.States[s]) / float64(r.Total) * width
		if part > 0 {
			part = max(part, 1) // a single refused key among thousands must be seen
			fmt.Fprintf(&b, `<rect class="cell-%s" x="%.2f" width="%.2f" height="10"/>`, s, x, part)
		}
		x += part
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// stateSentence says how many keys are in each state.
func stateSentence(r *api.FleetRecipe) string {
	parts := make([]string, 0, len(r.States))
	for _, s := range api.KeyStates() {
		if n := r.States[s]; n > 0 {
			parts = append(parts, count(n)+" "+stateWord(string(s)))
		}
	}
	if len(parts) == 0 {
		return "no keys"
	}
	return strings.Join(parts, ", ")
}

// chosenRecipe returns the recipe whose keys the strip shows: the one that the visitor has chosen, or the one with the
// most keys.
func chosenRecipe(v *visit) (*api.FleetRecipe, error) {
	all, err := get[api.Fleet](v, "/api/v1/fleet", v.pick("stale", "recipe"))
	if err != nil || len(all.Recipes) == 0 {
		return nil, err
	}
	most := slices.MaxFunc(all.Recipes, func(a, b api.FleetRecipe) int { return a.Total - b.Total })
	return &most, nil
}

// stripShown is the strip of a recipe's keys, and its legend.
type stripShown struct {
	Recipe  string
	By      string
	Picture template.HTML
	Left    int // number of keys that are not drawn
	Legend  []legendEntry
}

// legendEntry explains one colour of the strip.
type legendEntry struct {
	Value string // words of the entry
	Class string // value in the strip
	Keys  int
	URL   string // list of these keys; empty if there is no such filter
}

// mostDrawn limits the strip, because more cells would be smaller than the dots of a screen.
const mostDrawn = 100_000

func loadStrip(v *visit) (any, error) {
	r, err := chosenRecipe(v)
	if r == nil || err != nil {
		return nil, err
	}
	q := v.pick("stale", "by")
	q.Set("recipe", r.Recipe)
	strip, err := get[api.FleetStrip](v, "/api/v1/fleet/strip", q)
	if err != nil {
		return nil, err
	}
	s := stripShown{Recipe: r.Recipe, By: strip.By, Left: max(0, strip.Total-mostDrawn)}
	s.Picture = drawStrip(&strip, url.Values{"recipe": {r.Recipe}, "stale": v.pick("stale")["stale"]}, stateSentence(r))
	if strip.By == "age" {
		for _, a := range r.Ages {
			s.Legend = append(s.Legend, legendEntry{Value: ageWord(a.Within), Class: a.Within, Keys: a.Keys})
		}
		return s, nil
	}
	for _, state := range api.KeyStates() {
		s.Legend = append(s.Legend, legendEntry{stateWord(string(state)), string(state), r.States[state], v.with("recipe", r.Recipe, "state", string(state), "after", "")})
	}
	return s, nil
}

// ageWord explains an age of the strip.
func ageWord(within string) string {
	switch within {
	case "none":
		return "no champion"
	case "older":
		return within
	}
	return "within " + within
}

// with returns the address of this page with other parameters; an empty value removes one.
func (v *visit) with(pairs ...string) string {
	q := v.URL.Query()
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			q.Del(pairs[i])
		} else {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	if len(q) == 0 {
		return v.URL.Path
	}
	return v.URL.Path + "?" + q.Encode()
}

// With is with, for templates.
func (v *visit) With(pairs ...string) string { return v.with(pairs...) }

// stripColumns returns the number of cells in a row of the strip. The strip is five times as wide as high; a small one
// has cells of a size that a person can point at.
func stripColumns(total int) int {
	columns := 80
	for columns*columns < 5*total {
		columns++
	}
	return columns
}

// drawStrip draws a cell for each key, row after row. Each value is one path, whatever the number of keys, so the page
// stays small.
func drawStrip(s *api.FleetStrip, query url.Values, sentence string) template.HTML {
	total := min(s.Total, mostDrawn)
	columns := stripColumns(total)
	rows := max(1, (total+columns-1)/columns)
	paths := map[string]*strings.Builder{}
	at := 0
	for _, run := range s.Runs {
		p := paths[run.Value]
		if p == nil {
			p = &strings.Builder{}
			paths[run.Value] = p
		}
		for left := min(run.Keys, total-at); left > 0; {
			n := min(left, columns-at%columns)
			fmt.Fprintf(p, "M%d %d.5h%d", at%columns, at/columns, n)
			at, left = at+n, left-n
		}
	}
	values := make([]string, 0, len(paths))
	for value := range paths {
		values = append(values, value)
	}
	slices.Sort(values)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="strip" id="strip" viewBox="0 0 %d %d" tabindex="0" role="img" aria-label="%s" data-columns="%d" data-total="%d" data-query="%s">`,
		columns, rows, esc(count(s.Total)+" keys: "+sentence), columns, total, esc(query.Encode()))
	for _, value := range values {
		fmt.Fprintf(&b, `<path class="cell-%s" d="%s"/>`, esc(value), paths[value])
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// keysShown is a page of keys.
type keysShown struct {
	api.FleetKeys
	States   []api.KeyState
	Recipe   string // recipe that is selected, which actions on several keys need
	Metric   string // metric of the champions that the table shows; empty if they have none
	Order    []orderLink
	NextURL  string
	FirstURL string
}

// orderLink is the head of a column by which the keys can be sorted.
type orderLink struct {
	Title, URL string
	Sorted     string // value of aria-sort; empty if the keys are not sorted by it
}

func loadKeys(v *visit) (any, error) {
	q := v.pick("recipe", "state", "pinned", "running", "search", "where", "sort", "after", "at", "stale", "limit")
	if q.Get("limit") == "" {
		q.Set("limit", "50")
	}
	if q.Get("sort") == "" {
		q.Set("sort", usualSort)
	}
	keys, err := get[api.FleetKeys](v, "/api/v1/fleet/keys", q)
	if err != nil {
		return nil, err
	}
	s := keysShown{FleetKeys: keys, States: api.KeyStates(), Recipe: v.Q("recipe"), Metric: usualMetric(keys.Keys)}
	for _, o := range []struct{ title, sort string }{{"Key", "key"}, {"State", "state"}, {"Trained", "age"}, {"Newest version", "newest"}} {
		s.Order = append(s.Order, v.orderBy(o.title, o.sort))
	}
	s.NextURL, s.FirstURL = v.pageURLs("after", keys.Next)
	return s, nil
}

// usualSort shows the keys first that need a person.
const usualSort = "state"

func (v *visit) orderBy(title, by string) orderLink {
	l := orderLink{Title: title}
	now := v.Q("sort")
	if now == "" {
		now = usualSort
	}
	next := by
	switch now {
	case by:
		l.Sorted, next = "ascending", "-"+by
	case "-" + by:
		l.Sorted = "descending"
	}
	l.URL = v.with("sort", next, "after", "")
	return l
}

// usualMetric returns the metric that most champions of the page have; the first by name, if several do.
func usualMetric(keys []api.FleetKey) (name string) {
	of := map[string]int{}
	for i := range keys {
		for m := range keys[i].Metrics {
			of[m]++
		}
	}
	for m, n := range of {
		if n > of[name] || n == of[name] && m < name {
			name = m
		}
	}
	return name
}

// actOnSelected leads from the keys that a visitor has ticked to the page of an action on them. Actions on models need
// the names of the models. If one cannot be found, no page is opened, because it would lack a key that was ticked.
func actOnSelected(v *visit) string {
	do, recipe, keys := v.Q("do"), v.Q("recipe"), v.Form["key"]
	q := url.Values{"recipe": {recipe}, "key": keys}
	if do != "start-runs" {
		q = v.modelsOf(recipe, keys)
	}
	if len(v.missed) > 0 {
		return ""
	}
	return "/ui/act/" + url.PathEscape(do) + "?" + q.Encode()
}

// modelsOf returns the models of some keys. It notes the keys that it cannot look up.
func (v *visit) modelsOf(recipe string, keys []string) url.Values {
	q := url.Values{}
	if len(keys) > mostSelected {
		v.missed = append(v.missed, fmt.Sprintf("%d keys are selected, and %d may be: select fewer, or use the command line", len(keys), mostSelected))
		return q
	}
	for _, key := range keys {
		found, err := get[api.Models](v, "/api/v1/models", url.Values{"recipe": {recipe}, "key": {key}})
		if err != nil {
			v.missed = append(v.missed, fmt.Sprintf("the model of key %s cannot be looked up: %v", word(key), err))
		}
		for i := range found.Models {
			q.Add("model", found.Models[i].Name)
		}
	}
	return q
}

// refuseSelected says why the selected keys lead to no action.
func refuseSelected(v *visit) (any, error) {
	return nil, &api.Problem{Status: http.StatusServiceUnavailable, Title: "nothing was done with the selected keys", Detail: strings.Join(v.missed, "; ")}
}

// mostSelected is the number of keys that one action takes.
const mostSelected = 200

// staleChoices are the ages from which a visitor may call a champion stale.
func (v *visit) StaleChoices() []string { return []string{"1h", "12h", "1d", "7d", "30d", "90d"} }

// Number returns a metric of a key's champion; ? if it has none.
func (keysShown) Number(k api.FleetKey, metric string) string {
	value, known := k.Metrics[metric]
	if !known {
		return "?"
	}
	return number(value)
}

// Position says which rows of how many the page shows.
func (s keysShown) Position() string {
	if len(s.Keys) == 0 {
		return "no keys"
	}
	return count(s.Index+1) + " to " + count(s.Index+len(s.Keys)) + " of " + count(s.Total)
}
