package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

func fleetPages() []*page {
	return []*page{
		{path: "/{$}", nav: "/", title: named("Fleet"), regions: []region{
			part("recipes", "fleet", loadFleet, showFleet),
			part("strip", "fleet", loadStrip, showStrip),
			part("keys", "fleet", loadKeys, showKeys),
			part("fresh", "fleet", loadFreshness, showFreshness),
		}, main: still(func(v *view) Node {
			return list(h.H1(say(v.Title)), v.Region("recipes"), v.Region("strip"), v.Region("keys"), v.Region("fresh"))
		})},
		{path: "/ui/selected", nav: "/", title: named("Fleet"), redirect: actOnSelected, main: refuseSelected},
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
	Bar markup
}

func loadFleet(v *visit) (*fleetShown, error) {
	all, err := get[api.Fleet](v, "/api/v1/fleet", v.pick("stale"))
	if err != nil {
		return nil, err
	}
	f := fleetShown{States: api.KeyStates(), Chosen: v.Q("recipe")}
	for _, r := range all.Recipes {
		f.Recipes = append(f.Recipes, recipeShown{r, shares(&r)})
	}
	return &f, nil
}

func showFleet(v *visit, f *fleetShown) Node {
	if len(f.Recipes) == 0 {
		return hint{"The config has no recipes, so there are no models yet.", "To make a first one:", "tidemill init"}.node()
	}
	top := headRow(head(say("Recipe")), headNumber(say("Keys")), head(say("Shares")), each(f.States, func(s *api.KeyState) Node { return headNumber(badge(*s)) }),
		headNumber(say("Pinned")), headNumber(say("With a run")))
	return list(when(f.Chosen != "", actions(button(trialsURL("recipe", f.Chosen), "Trials of the recipe"), say(" "), button(rolloutURL(f.Chosen), "Rollout of the recipe"))), scroll("fleet", top, rows(each(f.Recipes, func(r *recipeShown) Node {
		return row(r.Recipe, when(r.Recipe == f.Chosen, h.Class("chosen")), rowName(anchor(recipeURL(r.Recipe), text(r.Recipe))), figure(say(count(r.Total))), cell(r.Bar),
			each(f.States, func(s *api.KeyState) Node { return figure(v.keysOfState(r, *s)) }),
			figure(say(count(r.Pinned))), figure(say(count(r.Running))))
	}))))
}

// keysOfState is the number of a recipe's keys in a state, which leads to these keys.
func (v *visit) keysOfState(r *recipeShown, s api.KeyState) Node {
	n := r.States[s]
	if n == 0 {
		return quiet(say("0"))
	}
	return anchor(v.with("recipe", r.Recipe, "state", string(s), "after", "", "at", "", "search", "", "where", ""), say(count(n)))
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

func loadFreshness(v *visit) ([]freshRow, error) {
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

func showFreshness(_ *visit, all []freshRow) Node {
	if len(all) == 0 {
		return nil
	}
	return list(h.H2(say("Time to a fresh model")),
		note(say("From an event that is accepted to the first event scored by the version that it led to: median and 99th percentile of the newest 500 versions.")),
		scroll("", headRow(head(say("Recipe")), headNumber(say("Versions")), headNumber(say("In all")), each(freshStages(), func(name *string) Node { return headNumber(say(*name)) })),
			rows(each(all, func(r *freshRow) Node {
				total := say("?")
				if r.Total != nil {
					total = list(h.B(say(duration(r.Total.P50))), say(" · "+duration(r.Total.P99)))
				}
				return row(r.Recipe, rowName(anchor(recipeURL(r.Recipe), text(r.Recipe))), figure(say(count(r.Models))), figure(total), each(r.Stages, func(s *freshStage) Node {
					if s.Percentiles == nil {
						return figure(say("?"))
					}
					return figure(say(duration(s.P50) + " · " + duration(s.P99)))
				}))
			}))))
}

// shares draws the states of a recipe's keys as one bar. The table next to it has the numbers.
func shares(r *api.FleetRecipe) markup {
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
	return markup(b.String())
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
	Picture markup
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

func loadStrip(v *visit) (*stripShown, error) {
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
		return &s, nil
	}
	for _, state := range api.KeyStates() {
		s.Legend = append(s.Legend, legendEntry{stateWord(string(state)), string(state), r.States[state], v.with("recipe", r.Recipe, "state", string(state), "after", "")})
	}
	return &s, nil
}

func showStrip(v *visit, s *stripShown) Node {
	if s == nil {
		return nil
	}
	colours := list(h.B(say("state")), say(" · "), anchor(v.with("by", "age"), say("age of the champion")))
	if s.By == "age" {
		colours = list(anchor(v.with("by", ""), say("state")), say(" · "), h.B(say("age of the champion")))
	}
	return list(
		h.Div(h.Class("strip-head"), h.H2(text(s.Recipe), say(": one cell for each key")), h.P(h.Class("choice"), say("Colour by "), colours)),
		s.Picture, g.El("tm-strip"),
		h.Ul(h.Class("cells"), each(s.Legend, func(e *legendEntry) Node {
			value := say(e.Value)
			if e.URL != "" {
				value = anchor(e.URL, value)
			}
			return h.Li(h.Class("cell-"+e.Class), value, say(" "+count(e.Keys)))
		})),
		when(s.Left > 0, note(say(count(s.Left)+" further keys are not drawn. The table has all."))))
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
func drawStrip(s *api.FleetStrip, query url.Values, sentence string) markup {
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
	return markup(b.String())
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

func loadKeys(v *visit) (*keysShown, error) {
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
	return &s, nil
}

func showKeys(v *visit, s *keysShown) Node {
	by, recipe := v.Q("by"), v.Q("recipe")
	parts := list(h.H2(say("Keys "), quiet(say(s.position()))),
		filter("/", when(by != "", hidden("by", by)), when(recipe != "", hidden("recipe", recipe)), choose(v, "State", "state", s.States), v.input("Name has", "search", "14", ""),
			v.input("Where", "where", "30", "newest > 5 AND age > 86400"), v.chooseStale(), submitButton("Filter"), when(v.URL.RawQuery != "", say(" "), anchor("/", say("All keys")))))
	if len(s.Keys) == 0 {
		return list(parts, nothing(say("No key matches. "), anchor("/", say("Show all keys"))))
	}
	top := list(head(say("Recipe")))
	if s.Recipe != "" {
		top = cell(h.Span(h.Class("hidden"), say("Select")))
	}
	sorted := each(s.Order, func(o *orderLink) Node {
		return h.Th(h.Scope("col"), when(o.Sorted != "", h.Aria("sort", o.Sorted)), anchor(o.URL, say(o.Title)))
	})
	return list(parts, h.Form(h.Method("get"), h.Action("/ui/selected"), hidden("recipe", s.Recipe),
		scroll("rows", headRow(top, sorted, head(say("Champion")), when(s.Metric != "", headNumber(say(word(s.Metric))))),
			rows(each(s.Keys, func(k *api.FleetKey) Node { return v.keyRow(s, k) }))),
		when(s.Recipe != "", h.P(h.Class("actions selected"), h.Span(), say(" "), doSelected("start-runs", "Train again…", ""), say(" "), doSelected("rollback", "Roll back…", "danger"), say(" "),
			doSelected("pin", "Pin…", ""), say(" "), doSelected("unpin", "Unpin…", "")))),
		pager("rows", s.NextURL, s.FirstURL))
}

func doSelected(action, title, class string) Node {
	return h.Button(h.Name("do"), h.Value(action), when(class != "", h.Class(class)), say(title))
}

func (v *visit) chooseStale() Node {
	return h.Label(say("Stale after "), h.Select(h.Name("stale"), h.Option(h.Value(""), say("7d")), each(staleChoices(), func(age *string) Node {
		return when(*age != "7d", h.Option(when(*age == v.Q("stale"), h.Selected()), say(*age)))
	})))
}

// maxTicked is the length of the longest key that can be selected, because it becomes part of an address.
const maxTicked = 1024

func (v *visit) keyRow(s *keysShown, k *api.FleetKey) Node {
	first := cell(anchor(recipeURL(k.Recipe), text(k.Recipe)))
	if s.Recipe != "" {
		first = cell(when(len(k.Key) < maxTicked, tick("key", k.Key, "Select "+word(k.Key))))
	}
	newest, champion := dash(), quiet(say("none"))
	if k.Newest != 0 {
		newest = list(anchor(versionURL(k.Model, k.Newest), say("version "+strconv.Itoa(k.Newest))), say(", "), v.ago(k.Registered))
	}
	if k.Champion != 0 || k.Model != "" {
		champion = modelLink(k.Model, k.Champion)
	}
	value, known := k.Metrics[s.Metric]
	shown := "?"
	if known {
		shown = number(value)
	}
	return row(k.Recipe+"/"+k.Key, first, rowName(keyLink(k.Key), when(k.Pinned, say(" "), badge("pinned")), when(k.Running, say(" "), badge("has a run"))),
		cell(badge(k.State), when(k.Why != "", say(" "), quiet(say(titled(k.Why))))), cell(v.ago(k.Began)), h.Td(h.Class("pair"), newest), cell(champion), when(s.Metric != "", figure(say(shown))))
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
			q.Add("model", tidemill.WholeName(found.Models[i].Name))
		}
	}
	return q
}

// refuseSelected says why the selected keys lead to no action.
func refuseSelected(v *view) (Node, error) {
	return nil, &api.Problem{Status: http.StatusServiceUnavailable, Title: "nothing was done with the selected keys", Detail: strings.Join(v.missed, "; ")}
}

// mostSelected is the number of keys that one action takes.
const mostSelected = 200

// staleChoices are the ages from which a visitor may call a champion stale.
func staleChoices() []string { return []string{"1h", "12h", "1d", "7d", "30d", "90d"} }

// position says which rows of how many the page shows.
func (s *keysShown) position() string {
	if len(s.Keys) == 0 {
		return "no keys"
	}
	return count(s.Index+1) + " to " + count(s.Index+len(s.Keys)) + " of " + count(s.Total)
}
