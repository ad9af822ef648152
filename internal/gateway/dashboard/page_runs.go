package dashboard

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

func runPages() []*page {
	return []*page{
		{path: "/ui/runs", nav: "/ui/runs", title: named("Runs and pools"), main: still(showRunsPage), regions: []region{
			part("pools", "pools runs commands", asked[api.Pools]("/api/v1/pools"), showPools),
			part("recipes", "runs commands", asked[api.Recipes]("/api/v1/recipes"), showRecipes),
			part("history", "pools", loadPoolHistory, showPoolHistory),
			part("runs", "runs", loadRuns, showRuns),
		}},
		{path: "/ui/runs/{run}", nav: "/ui/runs", title: runTitle, main: still(showRunPage), regions: []region{
			part("run", "run:{run}", loadRun, showRun),
			part("curves", "run:{run} run:{against}", loadCurves, showCurves),
			part("comparison", "run:{run} run:{against}", loadComparison, showComparison),
			part("choice", "", loadChoice, showChoice),
			part("attempts", "run:{run}", loadRun, showAttempts),
			part("files", "run:{run}", loadRunFiles, showRunFiles),
		}},
		{path: "/ui/compare", nav: "/ui/runs", title: named("Compare two runs"), redirect: compareSelected, main: func(v *view) (Node, error) {
			return nil, &api.Problem{Status: http.StatusBadRequest, Title: "two runs can be compared", Detail: fmt.Sprintf("%d runs are selected; go back, and select two", len(v.Form["run"]))}
		}},
	}
}

func showRunsPage(v *view) Node {
	return list(h.H1(say(v.Title)), h.Div(h.Class("side even"), v.Region("pools"), v.Region("recipes")), v.Region("history"), v.Region("runs"))
}

func showPools(v *visit, all *api.Pools) Node {
	if len(all.Pools) == 0 {
		return list(h.H2(say("Pools")), empty("The config has no pools."))
	}
	return list(h.H2(say("Pools")), scroll("", heads("Pool", "Slots", "#Waiting", "Act"), rows(each(all.Pools, func(p *api.Pool) Node {
		return row(p.Name, rowName(text(p.Name), when(p.PausedBy != "" || p.PausedSince != nil, say(" "), badge("paused"))),
			cell(slotsOf(p), when(p.Lingering > 0, say(" "), quiet(say(fmt.Sprintf("%d idle pods, %s of GPU idle", p.Lingering, duration(p.IdleSeconds)))))),
			figure(say(count(p.Waiting))), acts(v.pauseOrResume("pool", p.Name, p.PausedSince)))
	}))))
}

func slotsOf(p *api.Pool) Node {
	if p.Slots == 0 {
		return say(fmt.Sprintf("%d, no limit", p.Running))
	}
	return list(bar(fmt.Sprintf("%d of %d slots", p.Running, p.Slots), float64(p.Running), float64(p.Slots)), say(fmt.Sprintf(" %d of %d", p.Running, p.Slots)))
}

func showRecipes(v *visit, all *api.Recipes) Node {
	if len(all.Recipes) == 0 {
		return list(h.H2(say("Recipes")), hint{"The config has no recipes.", "Write a config with a recipe:", "tidemill init"}.node())
	}
	return list(h.H2(say("Recipes")), scroll("", heads("Recipe", "#Keys", "#Runs", "#Wait", "Act"), rows(each(all.Recipes, func(r *api.Recipe) Node {
		return row(r.Name, rowName(anchor(runsURL(r.Name), text(r.Name)), when(r.PausedSince != nil, say(" "), badge("paused"))),
			figure(say(count(r.Keys))), figure(say(count(r.Running))), figure(say(count(r.Waiting))),
			acts(v.Act("start-runs", "recipe", r.Name), say(" "), v.pauseOrResume("recipe", r.Name, r.PausedSince)))
	}))))
}

// runsURL is the address of the runs of a recipe.
func runsURL(recipe string) string { return queryURL("/ui/runs", "recipe", recipe) }

func showRuns(v *visit, l *runList) Node {
	parts := list(
		h.H2(say("Runs"), when(l.Total != nil, say(" "), quiet(say(count(l.Total))))),
		filter("/ui/runs", choose(v, "State", "state", l.States), v.input("Recipe", "recipe", "12", ""), v.input("Key", "key", "16", ""),
			v.input("Since", "since", "12", "-1h or a time"), submitButton("Filter"), when(l.Filtered, say(" "), anchor("/ui/runs", say("All runs")))))
	none := hint{"No runs yet. An event that a recipe waits for starts one.", "To start one by hand:", "tidemill runs start RECIPE --key KEY"}.node()
	switch {
	case len(l.Runs.Runs) > 0:
		return list(parts, showRunTable(v, l), pager("rows", l.NextURL, l.FirstURL))
	case l.Filtered:
		none = empty("No run matches this filter.")
	}
	return list(parts, emptyPage(none, "runs", l.NextURL, l.FirstURL))
}

func showRunTable(v *visit, l *runList) Node {
	return h.Form(h.Method("get"), h.Action("/ui/compare"),
		scroll("rows", headRow(cell(h.Span(h.Class("hidden"), say("Select"))), head(say("Run")), head(say("State")), head(say("Recipe")), head(say("Key")), head(say("Requested")), head(say("Progress or reason"))),
			rows(each(l.Runs.Runs, func(r *api.RunShown) Node {
				return row(r.ID, cell(tick("run", r.ID, "Select run "+word(r.ID))), rowName(runLink(r.ID)), cell(badge(r.State)), cell(text(r.Recipe)),
					cell(keyLink(r.Key)), cell(v.ago(r.Asking)), cell(courseOfRun(r)))
			}))),
		h.P(h.Class("actions selected"), say("Select two runs: "), submitButton("Compare")))
}

// tick is a box that selects a row.
func tick(name, value, label string) Node {
	return h.Input(h.Type("checkbox"), h.Name(name), h.Value(value), h.Aria("label", label))
}

// courseOfRun says how far a run is, what it waits for, or how it ended.
func courseOfRun(r *api.RunShown) Node {
	switch {
	case r.Progress != nil:
		return stepOf(r.Progress)
	case r.Waits != "":
		return say(titled(r.Waits))
	case r.Reason != "":
		return say(titled(r.Reason))
	case r.Result != nil:
		if accuracy, ok := r.Result.Metrics[metricAccuracy]; ok {
			return say("accuracy " + number(accuracy))
		}
	}
	return nil
}

// runStates are the choices of the filter.
func runStates() []tidemill.RunState {
	return []tidemill.RunState{tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting,
		tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled}
}

// runList is a page of runs.
type runList struct {
	api.Runs
	States   []tidemill.RunState
	Filtered bool
	NextURL  string
	FirstURL string
}

func loadRuns(v *visit) (*runList, error) {
	q := v.pick("state", "recipe", "key", "since", "limit", "after")
	if q.Get("limit") == "" {
		q.Set("limit", "50")
	}
	runs, err := get[api.Runs](v, "/api/v1/runs", q)
	if err != nil {
		return nil, err
	}
	l := runList{Runs: runs, States: runStates(), Filtered: len(v.pick("state", "recipe", "key", "since")) > 0}
	l.NextURL, l.FirstURL = v.pageURLs("after", runs.Next)
	return &l, nil
}

// pageURLs returns the addresses of the next and of the first page of a list, which may be empty.
// The parameter is that of the cursor.
func (v *visit) pageURLs(parameter, next string) (nextURL, firstURL string) {
	q := url.Values{}
	for name, values := range v.URL.Query() {
		q[name] = values
	}
	if q.Has(parameter) {
		q.Del(parameter)
		firstURL = v.URL.Path + "?" + q.Encode()
	}
	if next != "" {
		q.Set(parameter, next)
		nextURL = v.URL.Path + "?" + q.Encode()
	}
	return nextURL, firstURL
}

// runShown is a run with what its page computes.
type runShown struct {
	api.RunWhole
	Metrics []metric
	Stages  []tidemill.Stage
	Longest float64 // seconds of the longest stage
	Live    bool
}

// metric is a named figure.
type metric struct {
	Name  string
	Value float64
	Gate  bool // whether the recipe's gate names it
}

func loadRun(v *visit) (*runShown, error) {
	run, err := get[api.RunWhole](v, "/api/v1/runs/"+v.PathValue("run"), nil)
	if err != nil {
		return nil, err
	}
	r := runShown{RunWhole: run, Live: !run.State.Ended(), Metrics: sortedMetrics(metricsOf(&run), run.GateMetrics)}
	if run.Result != nil {
		r.Stages = run.Result.Stages
	}
	for _, s := range r.Stages {
		r.Longest = max(r.Longest, s.Seconds)
	}
	return &r, nil
}

// sortedMetrics returns the metrics of the gate first, and then the others by name.
func sortedMetrics(all map[string]float64, gate []string) []metric {
	var list []metric
	for name, value := range all {
		list = append(list, metric{name, value, slices.Contains(gate, name)})
	}
	slices.SortFunc(list, func(a, b metric) int {
		if a.Gate != b.Gate {
			if a.Gate {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return list
}

// fileList is a page of the files that a run has made.
type fileList struct {
	api.ArtifactFiles
	NextURL, FirstURL string
}

// loadRunFiles lists the files of a run. A run without an output has no list. That is no problem.
func loadRunFiles(v *visit) (*fileList, error) {
	q := v.pick("after")
	q.Set("limit", strconv.Itoa(100))
	files, err := get[api.ArtifactFiles](v, "/api/v1/runs/"+v.PathValue("run")+"/files", q)
	if isNotFound(err) {
		return &fileList{}, nil
	}
	if err != nil {
		return nil, err
	}
	return v.fileList(files), nil
}

func (v *visit) fileList(files api.ArtifactFiles) *fileList {
	l := fileList{ArtifactFiles: files}
	l.NextURL, l.FirstURL = v.pageURLs("after", files.Next)
	return &l
}

// sum says how many files there are. If the page has only some of them, it says so.
func (l *fileList) sum() Node {
	total, on := int64(0), ""
	for _, f := range l.Files {
		total += f.Size
	}
	if l.NextURL+l.FirstURL != "" {
		on = " on this page"
	}
	return quiet(say(strconv.Itoa(len(l.Files)) + on + ", " + size(total)))
}

func showRunPage(v *view) Node {
	log := "/api/v1/runs/" + url.PathEscape(v.PathValue("run")) + "/log"
	return list(h.H1(say(v.Title)), v.Region("run"), v.Region("curves"), v.Region("choice"), when(v.Q("against") != "", v.Region("comparison")),
		h.Section(h.H2(say("Log")), g.El("tm-log", h.Data("src", log), anchor(log, say("Open the log as text")))),
		v.Region("attempts"), v.Region("files"))
}

func showRun(v *visit, r *runShown) Node {
	do := "retry-runs"
	if r.Live {
		do = "cancel-runs"
	}
	return list(
		lead(badge(r.State), say(" "+titled(cmp.Or(r.Waits, r.Reason)))),
		actions(v.Act(do, "run", r.ID), say(" "), button(whyURL("run/"+r.ID), "Causes and effects")),
		facts(
			fact("Recipe", anchor(runsURL(r.Recipe), text(r.Recipe))),
			fact("Key", keyLink(r.Key)),
			fact("Requested", v.ago(r.Asking), by(r.By), say(", "+count(r.Causes)+" "+one(r.Causes, "event", "events"))),
			when(!r.Due.IsZero(), fact("Starts", v.ago(r.Due), say(" at the earliest"))),
			when(!r.End.IsZero(), fact("Ended", v.ago(r.End))),
			when(r.Pool != "", fact("Pool", text(r.Pool))),
			when(r.Priority != 0, fact("Priority", say(strconv.Itoa(r.Priority)))),
			when(r.Again != "", fact("Repeats", runLink(r.Again))),
			when(r.Commit != "", fact("Commit", text(r.Commit))),
			v.madeBy(r),
		),
		v.reported(r.Progress),
		when(len(r.Metrics) > 0, h.H2(say("Metrics")), facts(each(r.Metrics, func(m *metric) Node {
			return h.Div(h.Dt(text(m.Name), gateTag(m.Gate)), h.Dd(say(number(m.Value))))
		}))))
}

// reported shows the newest progress of a run.
func (v *visit) reported(p *api.Progress) Node {
	if p == nil {
		return nil
	}
	if p.Total == 0 {
		return h.P(say("Step "+number(p.Step)+", reported "), v.ago(p.Time))
	}
	return h.P(stepOf(p), say(", reported "), v.ago(p.Time))
}

// madeBy has what a run makes, what it used, and who cancelled it.
func (v *visit) madeBy(r *runShown) Node {
	var all g.Group
	if p := r.Plan; p != nil {
		all = append(all, when(p.Model != "", fact("Model", modelLink(p.Model, 0))), when(p.Dataset != "", fact("Dataset", anchor(dataURL(p.Dataset), text(p.Dataset)))))
	}
	if of := r.Result; of != nil {
		all = append(all, when(of.PeakMemory != 0, fact("Peak memory", say(size(of.PeakMemory)))), when(of.GPUSeconds != 0, fact("GPU time", say(duration(of.GPUSeconds)))))
	}
	if c := r.Cancel; c != nil {
		all = append(all, fact("Cancelled", v.ago(c.At), by(c.By), because(c.Reason)))
	}
	return all
}

// gateTag marks a metric that the recipe's gate uses.
func gateTag(gate bool) Node {
	return when(gate, say(" "), h.Span(h.Class("tag"), h.Title("the recipe's gate uses it"), say("gate")))
}

// stepOf shows the step of a run, and its share of all steps if their number is known.
func stepOf(p *api.Progress) Node {
	if p.Total == 0 {
		return say("step " + number(p.Step))
	}
	return list(bar("progress", p.Step, p.Total), say(" step "+number(p.Step)+" of "+number(p.Total)))
}

func showAttempts(v *visit, r *runShown) Node {
	parts := list(h.H2(say("Attempts")), nothing(say("It has not begun.")))
	if len(r.Attempts) > 0 {
		parts = list(h.H2(say("Attempts")), scroll("rows", heads("#No.", "Outcome", "Started", "#Took", "Node", "GPU", "Reason"), rows(each(r.Attempts, func(a *tidemill.Attempt) Node {
			return row(strconv.Itoa(a.Number), h.Th(h.Scope("row"), h.Class("num"), say(strconv.Itoa(a.Number))), cell(badge(cmp.Or(string(a.Outcome), "running"))), cell(v.ago(a.Started)), figure(v.since(a.Started, a.Ended)),
				cell(when(a.Node != "", text(a.Node))), cell(when(a.Card != "", text(a.Card))), cell(say(titled(cmp.Or(a.Pending, a.Reason)))))
		}))))
	}
	return list(parts,
		when(len(r.Stages) > 0, h.H2(say("Stages of the last attempt")), h.Table(h.Class("stages"), rows(each(r.Stages, func(s *tidemill.Stage) Node {
			return h.Tr(rowName(text(s.Name)), figure(say(duration(s.Seconds))), cell(bar(s.Name, s.Seconds, r.Longest)))
		})))),
		showLastLines(r.Result), showPlan(r.Plan),
		when(len(r.Events) > 0, h.H2(say("Causes")), each(r.Events, func(e *json.RawMessage) Node { return details("Event", h.Pre(say(indented(*e)))) })))
}

func details(summary string, nodes ...Node) Node {
	return h.Details(h.Summary(say(summary)), list(nodes...))
}

func showLastLines(r *tidemill.Result) Node {
	if r == nil || r.LastLines == "" {
		return nil
	}
	return details("Last lines of the log", h.Pre(say(titled(r.LastLines))))
}

// showPlan shows the inputs of a run, and all of its settings on request.
func showPlan(p *tidemill.Plan) Node {
	if p == nil {
		return nil
	}
	return list(when(len(p.Inputs) > 0, h.H2(say("Inputs")), table(heads("Name", "From", "#Files", "#Size"), rows(each(p.Inputs, func(in *tidemill.Input) Node {
		from := list(text(in.URI))
		if in.Outcomes != "" {
			from = list(say(count(in.Rows)+" outcomes of scorer "), scorerLink(in.Outcomes))
		}
		if in.Dataset != "" {
			from = list(anchor(dataURL(in.Dataset), text(in.Dataset)), say(" "), text(in.Branch), say(" "), quiet(say(word(in.Commit))))
		}
		return h.Tr(rowName(text(in.Name)), cell(from), figure(say(count(in.Files))), figure(say(size(in.Bytes))))
	})))), details("Command and limits", h.Pre(say(indented(p)))))
}

func showRunFiles(v *visit, l *fileList) Node {
	if len(l.Files) == 0 {
		return list(h.H2(say("Files")), nothing(say("It has stored no files.")))
	}
	return list(h.H2(say("Files "), l.sum()),
		scroll("rows", heads("Path", "#Size", "Digest"), rows(each(l.Files, func(f *api.File) Node {
			return row(f.Path, rowName(download(queryURL("/api/v1/runs/"+url.PathEscape(v.PathValue("run"))+"/file", "path", f.Path), text(f.Path))), figure(say(size(f.Size))), cell(h.Code(say(clipped(f.Digest)))))
		}))), pager("rows", l.NextURL, l.FirstURL))
}

// download is a link to a file, which the script gets with the token.
func download(to string, nodes ...Node) Node {
	return h.A(g.Attr("data-download"), h.Href(to), list(nodes...))
}

// clipped is the beginning of a digest or of a commit's id.
func clipped(digest string) string { return fmt.Sprintf("%.12s", digest) }
