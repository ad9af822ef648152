package dashboard

import (
	"cmp"
	"slices"

	"tidemill.dev"
	"tidemill.dev/api"
)

func modelPages() []*page {
	return []*page{
		{path: "/ui/models", file: "models", nav: "/ui/models", title: named("Models"), regions: []region{{"models", "approvals", loadModels}}},
		{path: "/ui/model", file: "model", nav: "/ui/models", title: modelTitle, redirect: toVersion, regions: []region{
			{"model", "approvals", loadModel},
			{"curve", "approvals", loadCurve},
			{"changes", "approvals", loadChanges},
			{"judged", "approvals", loadJudged},
			{"files", "approvals", loadModelFiles},
		}},
	}
}

// modelList is a page of models.
type modelList struct {
	api.Models
	Rows     []modelRow
	Filtered bool
	NextURL  string
	FirstURL string
}

// modelRow is a row of the list.
type modelRow struct {
	api.ModelShown
	Main    []metric // main metrics of the champion
	Waiting bool     // whether the newest version waits for a person
	Keyless bool     // whether its recipe has no keys
}

// rowOf returns the row of a model. The model of a recipe without keys has the recipe's name as its key.
func rowOf(m *api.ModelShown) modelRow {
	return modelRow{*m, mainMetrics(m.Metrics), m.State == tidemill.VersionAwaiting, m.Key == m.Recipe}
}

func modelFilters() []string {
	return []string{"recipe", "prefix", "key", "stale", "awaiting", "pinned"}
}

func loadModels(v *visit) (any, error) {
	q := v.pick(append(modelFilters(), "limit", "after")...)
	if q.Get("limit") == "" {
		q.Set("limit", "50")
	}
	models, err := get[api.Models](v, "/api/v1/models", q)
	if err != nil {
		return nil, err
	}
	l := modelList{Models: models, Filtered: len(v.pick(modelFilters()...)) > 0}
	for i := range models.Models {
		l.Rows = append(l.Rows, rowOf(&models.Models[i]))
	}
	l.NextURL, l.FirstURL = v.pageURLs("after", models.Next)
	return l, nil
}

// The metrics that Tidemill computes from the predictions of a run.
const (
	metricAccuracy = "accuracy"
	metricMacroF1  = "macroF1"
)

// mainMetrics returns at most two metrics for a row of a table: those that Tidemill computes, or else the
// first by name.
func mainMetrics(all map[string]float64) []metric {
	list := sortedMetrics(all, []string{metricAccuracy, metricMacroF1})
	if len(list) > 0 && list[0].Gate {
		list = slices.DeleteFunc(list, func(m metric) bool { return !m.Gate })
	}
	return list[:min(len(list), 2)]
}

// versionsByNumber returns versions with the oldest first.
func versionsByNumber(all []api.ModelVersion) []api.ModelVersion {
	return slices.SortedFunc(slices.Values(all), func(a, b api.ModelVersion) int { return cmp.Compare(a.Number, b.Number) })
}
