package dashboard

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
)

func runPages() []*page {
	return []*page{
		{path: "/ui/runs", file: "runs", nav: "/ui/runs", title: named("Runs and pools"), regions: []region{
			{"pools", "pools runs commands", func(v *visit) (any, error) { return get[api.Pools](v, "/api/v1/pools", nil) }},
			{"recipes", "runs commands", func(v *visit) (any, error) { return get[api.Recipes](v, "/api/v1/recipes", nil) }},
			{"runs", "runs", loadRuns},
		}},
		{path: "/ui/runs/{run}", file: "run", nav: "/ui/runs", title: runTitle, regions: []region{
			{"run", "run:{run}", loadRun},
			{"curves", "run:{run} run:{against}", loadCurves},
			{"comparison", "run:{run} run:{against}", loadComparison},
			{"choice", "", loadChoice},
			{"attempts", "run:{run}", loadRun},
			{"files", "run:{run}", loadRunFiles},
		}},
		{path: "/ui/compare", file: "missing", nav: "/ui/runs", title: named("Compare two runs"), redirect: compareSelected, load: func(v *visit) (any, error) {
			return nil, &api.Problem{Status: http.StatusBadRequest, Title: "two runs can be compared", Detail: fmt.Sprintf("%d runs are selected; go back, and select two", len(v.Form["run"]))}
		}},
	}
}

// runStates are the choices of the filter.
func runStates() []tidemill.RunState {
	return []tidemill.RunState{tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling,
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

func loadRuns(v *visit) (any, error) {
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
	return l, nil
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

func loadRun(v *visit) (any, error) {
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
	return r, nil
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
	Total   int64
	NextURL string
}

// loadRunFiles lists the files of a run. A run without an output has no list. That is no problem.
func loadRunFiles(v *visit) (any, error) {
	q := v.pick("after")
	q.Set("limit", strconv.Itoa(100))
	files, err := get[api.ArtifactFiles](v, "/api/v1/runs/"+v.PathValue("run")+"/files", q)
	if isNotFound(err) {
		return fileList{}, nil
	}
	if err != nil {
		return nil, err
	}
	l := fileList{ArtifactFiles: files}
	for _, f := range files.Files {
		l.Total += f.Size
	}
	l.NextURL, _ = v.pageURLs("after", files.Next)
	return l, nil
}
