package dashboard

import (
	"cmp"
	"slices"
	"strconv"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

func modelPages() []*page {
	return []*page{
		{path: "/ui/models", nav: "/ui/models", title: named("Models"), regions: []region{part("models", "approvals", loadModels, showModels)},
			main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("models")) })},
		{path: "/ui/model", nav: "/ui/models", title: modelTitle, redirect: toVersion, main: still(showModelPage), regions: []region{
			part("model", "approvals", loadModel, showModel),
			part("curve", "approvals", loadCurve, showCurve),
			part("changes", "approvals", loadChanges, showChanges),
			part("live", "model:{name}", loadLive, showLive),
			part("judged", "approvals", loadJudged, showJudged),
			part("files", "approvals", loadModelFiles, showModelFiles),
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

func loadModels(v *visit) (*modelList, error) {
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
	return &l, nil
}

func showModels(v *visit, l *modelList) Node {
	ticked := func(name, title string) Node {
		return h.Label(h.Input(h.Type("checkbox"), h.Name(name), h.Value("true"), when(v.Q(name) == "true", h.Checked())), say(" "+title))
	}
	parts := filter("/ui/models", v.input("Recipe", "recipe", "12", ""), v.input("Name begins with", "prefix", "14", ""), v.input("Key", "key", "14", ""),
		v.input("Champion older than", "stale", "8", "12h or 7d"), ticked("awaiting", "waits for a person"), ticked("pinned", "pinned"),
		submitButton("Filter"), when(l.Filtered, say(" "), anchor("/ui/models", say("All models"))))
	switch {
	case len(l.Rows) == 0 && l.Filtered:
		return list(parts, empty("No model matches this filter."))
	case len(l.Rows) == 0:
		return list(parts, hint{"No models yet. A run of a recipe that makes a model registers its first version.", "To start one:", "tidemill runs start RECIPE --key KEY"}.node())
	}
	order := ", by name"
	if v.Q("stale") != "" {
		order = ", the stalest first"
	}
	return list(parts, h.P(h.Class("none"), h.Aria("live", "off"), say(count(l.Total)+" "+one(l.Total, "model", "models")+order)),
		scroll("rows models", heads("Model", "Key", "Recipe", "#Champion", "Main metrics", "Trained", "Newest version", "Act"), rows(each(l.Rows, func(m *modelRow) Node {
			return row(titled(m.Name), rowName(modelLink(m.Name, 0)), cell(m.key()), cell(anchor(recipeURL(m.Recipe), text(m.Recipe))), figure(m.champion()),
				h.Td(h.Class("pair"), metricsLine(m.Main)), cell(v.ago(m.Began)), cell(m.newest()),
				buttons(when(m.Waiting, v.promote(m), say(" ")), when(m.Pinned, v.Act("unpin", "model", m.Name), say(" ")), when(m.Retired == nil, v.retrain(m))))
		}))), pager("rows", l.NextURL, l.FirstURL))
}

func (m *modelRow) key() Node {
	if m.Keyless {
		return quiet(say("no key"))
	}
	return keyLink(m.Key)
}

func (m *modelRow) champion() Node {
	if m.Champion == 0 {
		return badge("none")
	}
	return say(strconv.Itoa(m.Champion))
}

// newest shows the state of the newest version, and what keeps the champion from being used.
func (m *modelRow) newest() Node {
	return list(together(when(m.State != "", badge(m.State)), say(" "), quiet(say(strconv.Itoa(m.Newest)))), when(m.Pinned, say(" "), badge("pinned")),
		when(m.Unserved != nil, say(" "), badge("unserved")), when(len(m.Drifts) > 0, say(" "), badge("drifting")), when(m.Retired != nil, say(" "), badge("forgotten")), when(m.Hold != "", h.Div(h.Class("none"), say(titled(m.Hold)))))
}

func (v *visit) promote(m *modelRow) Node {
	return v.Act("promote", "model", m.Name, "version", strconv.Itoa(m.Newest), "basis", strconv.Itoa(m.Champion))
}

func (v *visit) retrain(m *modelRow) Node {
	if m.Keyless {
		return v.ActAs("Retrain", "start-runs", "recipe", m.Recipe)
	}
	return v.ActAs("Retrain", "start-runs", "recipe", m.Recipe, "key", m.Key)
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
