package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

func runTitle(v *visit) string {
	title := "Run " + word(v.PathValue("run"))
	if against := v.Q("against"); against != "" {
		title += " and run " + word(against)
	}
	return title
}

// compareSelected leads from two runs that are ticked in the list to their comparison.
func compareSelected(v *visit) string {
	runs := v.Form["run"]
	if len(runs) != 2 {
		return ""
	}
	return againstURL(runs[0], runs[1])
}

// shortID is the beginning of a run's id, as plain text.
func shortID(id string) string { return visible(id[:min(len(id), idShown)], idShown) }

func againstURL(run, against string) string { return queryURL(runURL(run), "against", against) }

// curvesShown is the chart of one metric, of one run or of two.
type curvesShown struct {
	Links []metricLink // metrics that have a curve
	Graph graph
	Notes []string
	Empty string // reason why there are no curves
}

// metricLink chooses a metric of the chart.
type metricLink struct {
	Name, URL     string
	Gate, Current bool
}

// chartPoints is enough for a chart: a third of its pixels.
const chartPoints = "300"

func loadCurves(v *visit) (*curvesShown, error) {
	ids := []string{v.PathValue("run")}
	if against := v.Q("against"); against != "" {
		ids = append(ids, against)
	}
	var shown curvesShown
	all := make([]api.RunCurves, len(ids))
	for i, id := range ids {
		var err error
		if all[i], err = get[api.RunCurves](v, "/api/v1/runs/"+url.PathEscape(id)+"/curves", url.Values{"points": {chartPoints}}); err != nil {
			return nil, err
		}
		if note := all[i].Note; note != "" {
			shown.Notes = append(shown.Notes, "Run "+all[i].Run+": "+note)
		}
	}
	shown.Empty = "The command has reported no metrics over its steps. Write them to metrics.jsonl, one object a line, to see them here during the run."
	metric := chosenMetric(v.Q("metric"), all)
	for _, c := range mergedMetrics(all) {
		shown.Links = append(shown.Links, metricLink{c.Name, v.with("metric", c.Name), c.Gate, c.Name == metric})
	}
	shown.Graph = graphOf(metric, all)
	return &shown, nil
}

// mergedMetrics returns the metrics of all runs: those of the first run, and then those that only
// later runs have.
func mergedMetrics(all []api.RunCurves) (merged []api.Curve) {
	for _, run := range all {
		for _, c := range run.Curves {
			if !slices.ContainsFunc(merged, func(m api.Curve) bool { return m.Name == c.Name }) {
				merged = append(merged, c)
			}
		}
	}
	return merged
}

// chosenMetric returns the metric that the visitor has chosen, or else the first one that the gate
// names, the loss, or the first one.
func chosenMetric(choice string, all []api.RunCurves) string {
	merged := mergedMetrics(all)
	for _, is := range []func(api.Curve) bool{
		func(c api.Curve) bool { return c.Name == choice },
		func(c api.Curve) bool { return c.Gate },
		func(c api.Curve) bool { return strings.HasSuffix(c.Name, "loss") },
		func(api.Curve) bool { return true },
	} {
		if i := slices.IndexFunc(merged, is); i >= 0 {
			return merged[i].Name
		}
	}
	return ""
}

// graphOf draws the curves of one metric.
func graphOf(metric string, all []api.RunCurves) graph {
	g := graph{Title: metric, X: "step"}
	var sentences []string
	for i, run := range all {
		name := "this run"
		if i > 0 {
			name = "run " + shortID(run.Run)
		}
		c := curve{Name: name}
		for _, is := range run.Curves {
			if is.Name == metric {
				c.Points = pointsOf(is.Points)
			}
		}
		g.Curves = append(g.Curves, c)
		sentence := courseOf(c.Points)
		if len(all) > 1 {
			sentence = name + ": " + sentence
		}
		sentences = append(sentences, sentence)
	}
	g.Sentence = strings.Join(sentences, "; ")
	return g
}

func pointsOf(all [][2]*float64) (points []point) {
	for _, p := range all {
		if p[0] == nil {
			continue
		}
		y := math.NaN()
		if p[1] != nil {
			y = *p[1]
		}
		points = append(points, point{*p[0], y})
	}
	return points
}

// courseOf says in words how a curve goes.
func courseOf(points []point) string {
	points = slices.DeleteFunc(slices.Clone(points), func(p point) bool { return math.IsNaN(p.Y) })
	if len(points) == 0 {
		return "no values"
	}
	byValue := func(a, b point) int { return cmp.Compare(a.Y, b.Y) }
	least, greatest, last := slices.MinFunc(points, byValue), slices.MaxFunc(points, byValue), points[len(points)-1]
	return fmt.Sprintf("%s at step %s, between %s and %s", number(last.Y), number(last.X), number(least.Y), number(greatest.Y))
}

func showCurves(_ *visit, c *curvesShown) Node {
	title := h.H2(say("Learning curves"))
	notes := each(c.Notes, func(text *string) Node { return note(say(titled(*text))) })
	if len(c.Links) == 0 {
		return list(title, nothing(say(c.Empty)), notes)
	}
	return list(title, h.P(h.Class("choice"), h.Aria("label", "Metric"), each(c.Links, func(l *metricLink) Node {
		if l.Current {
			return list(h.B(h.Class("pair"), text(l.Name), gateTag(l.Gate)), say(" "))
		}
		return list(together(anchor(l.URL, text(l.Name)), gateTag(l.Gate)), say(" "))
	})), lineChart(c.Graph), notes)
}

// choice is the form for the other run of a comparison.
type choice struct {
	Run     string
	Options []runOption
}

type runOption struct {
	ID, Text string
	Current  bool
}

// loadChoice lists the newest runs of the same key, and then the newest others of the recipe.
func loadChoice(v *visit) (*choice, error) {
	run, err := get[api.RunWhole](v, "/api/v1/runs/"+v.PathValue("run"), nil)
	if err != nil {
		return &choice{}, nil // the region "run" shows the problem
	}
	c := choice{Run: run.ID}
	seen := map[string]bool{run.ID: true}
	if against := v.Q("against"); against != "" {
		if other, err := get[api.RunWhole](v, "/api/v1/runs/"+url.PathEscape(against), nil); err == nil {
			c.add(v, seen, other.RunShown, true)
		}
	}
	for _, q := range []url.Values{{"recipe": {run.Recipe}, "key": {run.Key}, "limit": {"20"}}, {"recipe": {run.Recipe}, "limit": {"20"}}} {
		runs, err := get[api.Runs](v, "/api/v1/runs", q)
		if err != nil {
			return nil, err
		}
		for _, r := range runs.Runs {
			c.add(v, seen, r, false)
		}
	}
	return &c, nil
}

func (c *choice) add(v *visit, seen map[string]bool, r api.RunShown, current bool) {
	if seen[r.ID] {
		return
	}
	seen[r.ID] = true
	text := strings.Join([]string{shortID(r.ID), word(r.Key), stateWord(string(r.State)), distance(v.d.opt.Now().Sub(r.Asking))}, " · ")
	c.Options = append(c.Options, runOption{r.ID, text, current})
}

// comparison is two runs side by side.
type comparison struct {
	Other    api.RunWhole
	Sentence string
	Facts    []comparedRow
	Metrics  []comparedRow
	Inputs   []comparedInput
	Settings []comparedSetting
}

func showChoice(v *visit, c *choice) Node {
	if len(c.Options) == 0 {
		return nil
	}
	metric, against := v.Q("metric"), v.Q("against")
	return filter(runURL(c.Run), when(metric != "", hidden("metric", metric)),
		h.Label(say("Compare with "), h.Select(h.Name("against"), each(c.Options, func(o *runOption) Node {
			return h.Option(h.Value(o.ID), when(o.Current, h.Selected()), say(o.Text))
		}))), submitButton("Compare"), when(against != "", say(" "), anchor(runURL(c.Run), say("This run alone"))))
}

func showComparison(_ *visit, c *comparison) Node {
	if c == nil {
		return nil
	}
	other := list(say("Run "), idText(c.Other.ID))
	show := func(key string, name Node, r *comparedRow) Node {
		return row(key, rowName(name), figure(r.This), figure(r.Other), figure(say(r.Difference)))
	}
	return list(h.H2(say("Compared with run "), runLink(c.Other.ID)), lead(say(c.Sentence)),
		scroll("compared", headRow(head(), headNumber(say("This run")), headNumber(other), headNumber(say("Difference"))), rows(
			each(c.Facts, func(r *comparedRow) Node { return show(word(r.Name), say(r.Name), r) }),
			each(c.Metrics, func(r *comparedRow) Node { return show("metric "+word(r.Name), list(text(r.Name), gateTag(r.Gate)), r) }))),
		when(len(c.Inputs) > 0, h.H3(say("Inputs that differ")), scroll("", headRow(head(say("Name")), head(say("This run")), head(other)), rows(each(c.Inputs, func(in *comparedInput) Node {
			return row(word(in.Name), rowName(text(in.Name)), each(in.Both[:], func(one *tidemill.Input) Node { return cell(inputShown(one)) }))
		})))),
		when(len(c.Settings) > 0, h.H3(say("Command, image and limits that differ")), scroll("", headRow(head(say("Setting")), head(say("This run")), head(other)), rows(each(c.Settings, func(s *comparedSetting) Node {
			return row(word(s.Name), rowName(text(s.Name)), cell(settingShown(s.This)), cell(settingShown(s.Other)))
		})))))
}

func inputShown(in *tidemill.Input) Node {
	switch {
	case in.Dataset != "":
		return list(anchor(dataURL(in.Dataset), text(in.Dataset)), say(" "), text(in.Branch), say(" "), when(in.Commit != "", h.Code(idText(in.Commit)), say(" ")),
			quiet(say(count(in.Files)+" files, "+size(in.Bytes))))
	case in.URI != "":
		return text(in.URI)
	}
	return quiet(say("not an input"))
}

func settingShown(value string) Node {
	if value == "" {
		return quiet(say("not set"))
	}
	return say(titled(value))
}

// comparedRow is one thing of both runs. The difference is this run's number less that of the other.
type comparedRow struct {
	Name        string
	This, Other markup
	Difference  string
	Gate        bool
}

type comparedInput struct {
	Name string
	Both [2]tidemill.Input
}

type comparedSetting struct{ Name, This, Other string }

func loadComparison(v *visit) (*comparison, error) {
	if v.Q("against") == "" {
		return nil, nil
	}
	var both [2]api.RunWhole
	for i, id := range []string{v.PathValue("run"), v.Q("against")} {
		var err error
		if both[i], err = get[api.RunWhole](v, "/api/v1/runs/"+url.PathEscape(id), nil); err != nil {
			return nil, err
		}
	}
	c := comparison{Other: both[1], Facts: comparedFacts(v.d, both), Metrics: metricsOfBoth(both)}
	if both[0].Plan == nil || both[1].Plan == nil {
		c.Sentence = "Inputs and settings cannot be compared, because not both runs have begun."
		return &c, nil
	}
	c.Inputs, c.Settings = comparedInputs(both), comparedSettings(both)
	c.Sentence = "The inputs are the same. "
	if n := len(c.Inputs); n > 0 {
		c.Sentence = fmt.Sprintf("%d of %d inputs differ. ", n, max(len(both[0].Plan.Inputs), len(both[1].Plan.Inputs)))
	}
	switch n := len(c.Settings); n {
	case 0:
		c.Sentence += "Command, image and limits are the same."
	case 1:
		c.Sentence += "One setting differs."
	default:
		c.Sentence += fmt.Sprintf("%d settings differ.", n)
	}
	return &c, nil
}

// comparedFacts returns the rows about the runs themselves.
func comparedFacts(d *Dashboard, both [2]api.RunWhole) []comparedRow {
	rows := []comparedRow{
		{Name: "Outcome", This: badge(both[0].State), Other: badge(both[1].State)},
		{Name: "Recipe", This: text(both[0].Recipe), Other: text(both[1].Recipe)},
		{Name: "Key", This: keyLink(both[0].Key), Other: keyLink(both[1].Key)},
		{Name: "Requested", This: d.ago(both[0].Asking), Other: d.ago(both[1].Asking), Difference: signedTime(both[0].Asking.Sub(both[1].Asking))},
	}
	if both[0].Recipe == both[1].Recipe {
		rows = slices.Delete(rows, 1, 2)
	}
	seconds := func(r *api.RunWhole) float64 { return took(r, d.opt.Now()).Seconds() }
	rows = append(rows, comparedTime("Time from start to end or now", both, seconds), comparedTime("GPU time", both, func(r *api.RunWhole) float64 {
		if r.Result == nil {
			return math.NaN()
		}
		return r.Result.GPUSeconds
	}))
	return append(rows, comparedNumbers("Attempts", float64(len(both[0].Attempts)), float64(len(both[1].Attempts))))
}

// took returns the time from the start of a run to its end, or until now.
func took(r *api.RunWhole, now time.Time) time.Duration {
	if len(r.Attempts) == 0 {
		return 0
	}
	end := r.End
	if end.IsZero() {
		end = now
	}
	return end.Sub(r.Attempts[0].Started)
}

func comparedTime(name string, both [2]api.RunWhole, of func(*api.RunWhole) float64) comparedRow {
	a, b := of(&both[0]), of(&both[1])
	row := comparedRow{Name: name, This: secondsCell(a), Other: secondsCell(b)}
	if !math.IsNaN(a) && !math.IsNaN(b) {
		row.Difference = signedTime(time.Duration((a - b) * float64(time.Second)))
	}
	return row
}

func secondsCell(s float64) markup {
	if math.IsNaN(s) {
		return never
	}
	return markup(esc(duration(s)))
}

func signedTime(d time.Duration) string {
	if d == 0 {
		return "same"
	}
	return withSign(d.Seconds(), short(d.Abs()))
}

// comparedNumbers compares two figures. One that a run does not have is NaN.
func comparedNumbers(name string, this, other float64) comparedRow {
	row := comparedRow{Name: name, This: numberCell(this), Other: numberCell(other)}
	switch d := this - other; {
	case math.IsNaN(d):
	case d == 0:
		row.Difference = "same"
	default:
		row.Difference = withSign(d, number(math.Abs(d)))
		if other != 0 {
			row.Difference += " (" + withSign(d, fmt.Sprintf("%.1f %%", math.Abs(100*d/other))) + ")"
		}
	}
	return row
}

// withSign writes a size with the sign of a figure.
func withSign(f float64, size string) string {
	if f < 0 {
		return "−" + size
	}
	return "+" + size
}

func numberCell(f float64) markup {
	if math.IsNaN(f) {
		return never
	}
	return markup(esc(number(f)))
}

// metricsOfBoth compares the metrics that either run has. Those of the gate come first.
func metricsOfBoth(both [2]api.RunWhole) []comparedRow {
	of := [2]map[string]float64{metricsOf(&both[0]), metricsOf(&both[1])}
	union := maps.Clone(of[1])
	if union == nil {
		union = map[string]float64{}
	}
	maps.Copy(union, of[0])
	var rows []comparedRow
	for _, m := range sortedMetrics(union, both[0].GateMetrics) {
		row := comparedNumbers(m.Name, valueOrNaN(of[0], m.Name), valueOrNaN(of[1], m.Name))
		row.Gate = m.Gate
		rows = append(rows, row)
	}
	return rows
}

// metricsOf returns the newest metrics of a live run, or those of an ended one. A live run may also have
// the result of an earlier attempt.
func metricsOf(r *api.RunWhole) map[string]float64 {
	switch {
	case r.Progress != nil:
		return r.Progress.Metrics
	case r.Result != nil:
		return r.Result.Metrics
	}
	return nil
}

func valueOrNaN(of map[string]float64, name string) float64 {
	if value, ok := of[name]; ok {
		return value
	}
	return math.NaN()
}

// comparedInputs returns the inputs that differ: by commit, or by address.
func comparedInputs(both [2]api.RunWhole) (rows []comparedInput) {
	names, of := []string{}, [2]map[string]tidemill.Input{{}, {}}
	for i := range both {
		for _, input := range both[i].Plan.Inputs {
			of[i][input.Name] = input
			if !slices.Contains(names, input.Name) {
				names = append(names, input.Name)
			}
		}
	}
	for _, name := range names {
		a, b := of[0][name], of[1][name]
		if a.Dataset != b.Dataset || a.Commit != b.Commit || a.Tree != b.Tree || a.URI != b.URI {
			rows = append(rows, comparedInput{name, [2]tidemill.Input{a, b}})
		}
	}
	return rows
}

// comparedSettings returns the parts of the plans that differ. Inputs have their own table. The
// champion is no setting, and the key decides what a run makes.
func comparedSettings(both [2]api.RunWhole) (rows []comparedSetting) {
	of := [2]map[string]string{settingsOf(both[0].Plan), settingsOf(both[1].Plan)}
	names := maps.Clone(of[0])
	maps.Copy(names, of[1])
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if of[0][name] != of[1][name] {
			rows = append(rows, comparedSetting{name, of[0][name], of[1][name]})
		}
	}
	return rows
}

func settingsOf(p *tidemill.Plan) map[string]string {
	plan := *p
	plan.Inputs, plan.Champion, plan.Model, plan.Dataset = nil, nil, "", ""
	var tree map[string]any
	data, err := json.Marshal(&plan)
	if err != nil || json.Unmarshal(data, &tree) != nil {
		return map[string]string{} // cannot happen: the plan was read from JSON
	}
	all := map[string]string{}
	flatten(all, "", tree)
	return all
}

// flatten adds the leaves of a JSON object under their paths.
func flatten(to map[string]string, prefix string, from map[string]any) {
	for name, value := range from {
		switch v := value.(type) {
		case map[string]any:
			flatten(to, prefix+name+".", v)
		case string:
			to[prefix+name] = v
		case float64:
			to[prefix+name] = settingNumber(name, v)
		default:
			text, _ := json.Marshal(v) // v was read from JSON
			to[prefix+name] = string(text)
		}
	}
}

// settingNumber writes a number of a plan in the unit that its name implies.
func settingNumber(name string, f float64) string {
	switch name {
	case "memory", "maxOutput", "maxLog", "disk", "shm":
		return size(int64(f))
	case "deadline", "grace", "first", "cap":
		return short(time.Duration(f))
	}
	return number(f)
}
