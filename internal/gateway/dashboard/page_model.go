package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

func modelTitle(v *visit) string { return "Model " + word(v.query("name")) }

// toVersion sends a name such as intent/bot-1@7 to the page of that version.
func toVersion(v *visit) string {
	name, which, err := tidemill.CutVersionName(v.query("name"))
	if err != nil || which == "" || v.query("version") != "" {
		return ""
	}
	return queryURL("/ui/model", "name", name, "version", which)
}

// askModel gets a model with one version and its report. An empty version is for all versions without reports.
func askModel(v *visit, version string) (api.ModelWhole, error) {
	return askVersions(v, v.query("name"), version)
}

// askVersions is askModel for any model. The gateway leaves out a version that is removed during its answer.
func askVersions(v *visit, model, version string) (api.ModelWhole, error) {
	q := url.Values{"model": {model}}
	if version != "" {
		q.Set("version", version)
	}
	whole, err := get[api.ModelWhole](v, "/api/v1/model", q)
	if err == nil && version != "" && len(whole.All) == 0 {
		err = &api.Problem{Status: http.StatusNotFound, Title: "there is no such version", Detail: "version " + word(version) + " was removed meanwhile"}
	}
	return whole, err
}

// chosen returns the version that a page is about, as the API reads it.
func chosen(v *visit) string {
	if which := v.query("version"); which != "" {
		return which
	}
	return tidemill.WhichNewest
}

// modelShown is a model and the rows of its page.
type modelShown struct {
	api.ModelWhole
	Shown   []versionRow
	Chosen  int        // version that the page is about
	Since   *time.Time // time since when the champion is the champion; nil if not known
	Keyless bool
}

// versionRow is a row of the table of versions.
type versionRow struct {
	api.ModelVersion
	Sentence           string // judgement without the name of the version; empty before it is judged
	Main               []metric
	Champion, Previous bool
}

// mostVersions is the number of rows of the table of versions.
const mostVersions = 100

func loadModel(v *visit) (*modelShown, error) {
	whole, err := askModel(v, "")
	if err != nil {
		return nil, err
	}
	m := modelShown{ModelWhole: whole, Chosen: whole.Which(chosen(v)), Keyless: whole.Key == whole.Recipe}
	if m.Chosen == 0 {
		m.Chosen, _ = strconv.Atoi(chosen(v))
	}
	for i, c := range whole.Changes {
		if c.Version == whole.Champion && c.Before != c.Version {
			m.Since = &whole.Changes[i].At
		}
	}
	for _, version := range whole.All[:min(len(whole.All), mostVersions)] {
		m.Shown = append(m.Shown, versionRow{version, judgementOf(&version), mainMetrics(version.Metrics), version.Number == whole.Champion, version.Number == whole.Previous})
	}
	return &m, nil
}

func showModelPage(v *view) Node {
	return list(h.H1(say(v.Title)), v.Region("model"), v.Region("live"), v.Region("judged"),
		h.Div(h.Class("side"), h.Div(v.Region("curve")), h.Aside(h.Aria("label", "Changes"), v.Region("changes"))), v.Region("files"))
}

func showModel(v *visit, m *modelShown) Node {
	key := list(quiet(say("the recipe has no keys")))
	if !m.Keyless {
		key = keyLink(m.Key)
	}
	return list(v.standing(m), v.exceptions(m), v.modelActions(m),
		facts(fact("Key", key), fact("Recipe", anchor(recipeURL(m.Recipe), text(m.Recipe))), fact("Versions", say(count(len(m.All))+" kept, "+count(m.Last)+" registered"))),
		h.H2(say("Versions")), v.versions(m))
}

// standing says which version is the champion, and what happened to the newest one.
func (v *visit) standing(m *modelShown) Node {
	line := g.Group{badge("none"), say(" No version is the champion.")}
	if m.Champion != 0 {
		line = g.Group{say("Version " + strconv.Itoa(m.Champion) + " is the champion")}
		if m.Since != nil {
			line = append(line, say(", promoted "), v.ago(m.Since))
		}
		line = append(line, say("."))
	}
	if len(m.All) > 0 && m.All[0].Number != m.Champion {
		newest := &m.All[0]
		line = append(line, say(" The newest, version "+strconv.Itoa(newest.Number)+", is "), badge(newest.State))
		if newest.Judgement != nil {
			line = append(line, because(newest.Judgement.Hold))
		}
		line = append(line, say("."))
	}
	return lead(line)
}

// exceptions are the reasons why the champion is not simply the newest good version.
func (v *visit) exceptions(m *modelShown) Node {
	var all g.Group
	if p := m.Pin; p != nil {
		all = append(all, h.P(badge("pinned"), say(" "), v.ago(p.At), by(p.By), because(p.Reason), say(". The champion stays until it is unpinned.")))
	}
	if u := m.Unserved; u != nil {
		answers := "No version answers."
		if u.Kept != 0 {
			answers = "Version " + strconv.Itoa(u.Kept) + " answers instead."
		}
		all = append(all, h.Div(h.Class("problem"), h.P(h.Strong(say("The scorer "), text(u.Scorer), say(" cannot serve the champion.")), say(" "+answers+" Reported "), v.ago(u.At), say(".")), h.P(say(titled(u.Error)))))
	}
	for i := range m.Drifts {
		d := &m.Drifts[i]
		all = append(all, h.P(badge("drifting"), say(" "), text(d.Figure), say(": the share of "), text(d.Value), say(" was "+percent(d.Before, 1)+" in the champion's first answers and is "+percent(d.Now, 1)+" in the last "+count(d.Values)+", since "), text(d.Since), say(". Reported "), v.ago(d.At), say(".")))
	}
	for i := range m.All {
		if t := m.All[i].OnTrial; t != nil {
			all = append(all, h.P(badge(tidemill.VersionTrial), say(" Version "+strconv.Itoa(t.Version)+" answers the events of "), scorerLink(t.Scorer), say(" next to version "+strconv.Itoa(t.Champion)+" since "), v.ago(t.Began),
				say(": "), text(t.Text), say(". "), anchor(trialURL(m.Name, t.Version), say("Its evidence")), say("."), when(t.Error != "", say(" It does not advance: "), text(t.Error))))
		}
	}
	if c := m.Canary; c != nil {
		all = append(all, h.P(badge(tidemill.VersionCanary), say(" Version "+strconv.Itoa(c.Version)+" answers "+percent(c.Share, 1)+" of the events since "), v.ago(c.At), say(".")))
		if u := c.Unserved; u != nil {
			all = append(all, h.Div(h.Class("problem"), h.P(h.Strong(say("The scorer "), text(u.Scorer), say(" cannot serve the canary.")), say(" Reported "), v.ago(u.At), say(".")), h.P(say(titled(u.Error)))))
		}
	}
	if !m.Retired.IsZero() {
		all = append(all, h.P(badge("forgotten"), say(" Its key was forgotten "), v.ago(m.Retired), say(".")))
	}
	return all
}

func (v *visit) modelActions(m *modelShown) Node {
	var all g.Group
	if m.Chosen != 0 && m.Chosen != m.Champion {
		all = append(all, v.ActAs("Promote version "+strconv.Itoa(m.Chosen), "promote", "model", m.Name, "version", strconv.Itoa(m.Chosen), "basis", strconv.Itoa(m.Champion)), say(" "))
	}
	if h := m.Find(m.Chosen); h != nil && (h.State == tidemill.VersionAwaiting || h.State == tidemill.VersionCanary) {
		all = append(all, v.ActAs("Refuse version "+strconv.Itoa(m.Chosen), "refuse", "model", m.Name, "version", strconv.Itoa(m.Chosen), "basis", strconv.Itoa(m.Champion)), say(" "))
	}
	if m.Previous != 0 {
		all = append(all, v.ActAs("Roll back to version "+strconv.Itoa(m.Previous), "rollback", "model", m.Name, "version", strconv.Itoa(m.Previous)), say(" "))
	}
	switch {
	case m.Pin != nil:
		all = append(all, v.Act("unpin", "model", m.Name), say(" "))
	case m.Champion != 0:
		all = append(all, v.ActAs("Pin the champion", "pin", "model", m.Name), say(" "))
	}
	if m.Keyless {
		all = append(all, v.ActAs("Retrain", "start-runs", "recipe", m.Recipe))
	} else {
		all = append(all, v.ActAs("Retrain", "start-runs", "recipe", m.Recipe, "key", m.Key), say(" "), v.ActAs("Forget the key…", "forget", "key", m.Key))
	}
	return actions(all, say(" "), button(whyURL("model/"+tidemill.WholeName(m.Name)), "Causes and effects"))
}

func (v *visit) versions(m *modelShown) Node {
	if len(m.Shown) == 0 {
		return nothing(say("It has no version."))
	}
	return list(scroll("rows", heads("#Version", "State", "Registered", "Run", "Main metrics", "Judgement"), rows(each(m.Shown, func(r *versionRow) Node {
		number, chosen := strconv.Itoa(r.Number), r.Number == m.Chosen
		state := list(badge(r.State), when(r.Previous, say(" "), quiet(say("previous champion"))))
		if r.Champion {
			state = badge("champion")
		}
		sentence := quiet(say("not judged yet"))
		if r.Sentence != "" {
			sentence = say(titled(r.Sentence))
		}
		return row(number, when(chosen, h.Class("chosen")), h.Th(h.Scope("row"), h.Class("num"), h.A(h.Href(versionURL(v.Q("name"), r.Number)), when(chosen, h.Aria("current", "true")), say(number))),
			cell(state), cell(v.ago(r.At)), h.Td(h.Class("pair"), shortRunLink(r.Run)), h.Td(h.Class("pair"), metricsLine(r.Main)), cell(sentence))
	}))), when(len(m.Shown) < len(m.All), note(say(fmt.Sprintf("The newest %d of %s versions.", len(m.Shown), count(len(m.All)))))))
}

// judgementOf returns the sentence of a judgement without the name of its version, which the page says already.
func judgementOf(v *api.ModelVersion) string {
	if v.Judgement == nil {
		return ""
	}
	return strings.TrimPrefix(v.Judgement.Sentence, "version "+strconv.Itoa(v.Number)+" of "+v.Model+" ")
}

func loadChanges(v *visit) (api.ModelWhole, error) { return askModel(v, "") }

// showChanges shows the changes of the champion, newest first.
func showChanges(v *visit, m api.ModelWhole) Node {
	if len(m.Changes) == 0 {
		return list(h.H2(say("Changes of the champion")), nothing(say("None yet.")))
	}
	slices.Reverse(m.Changes)
	return list(h.H2(say("Changes of the champion")), h.Ul(h.Class("log-list"), each(m.Changes, func(c *fold.Change) Node {
		versions := "version " + strconv.Itoa(c.Version)
		if c.Before != 0 {
			versions = "version " + strconv.Itoa(c.Before) + " → " + versions
		}
		return h.Li(v.ago(c.At), say(" "), h.Strong(say(m.How(c))), say(": "+versions), when(c.By != "", say(", by "), text(c.By)), because(c.Reason))
	})))
}

func showCurve(_ *visit, c *versionCurve) Node {
	if c.Few {
		return list(h.H2(say("Over its versions")), nothing(say("No version has a metric to draw.")))
	}
	return list(h.H2(say("Over its versions")), lineChart(c.Graph))
}

// mostCurve is the number of versions in the chart. The interval of each is in its report, which the API
// reads from the store.
const mostCurve = 12

// versionCurve is the chart of a model.
type versionCurve struct {
	Graph graph
	Few   bool // whether there is nothing to draw
}

func loadCurve(v *visit) (*versionCurve, error) {
	whole, err := askModel(v, "")
	if err != nil {
		return nil, err
	}
	all := whole.All[:min(len(whole.All), mostCurve)]
	if len(all) == 0 {
		return &versionCurve{Few: true}, nil
	}
	name := curveMetric(&all[0])
	own := curve{Name: name}
	reports := reportsOf(v, all)
	for _, version := range versionsByNumber(all) {
		if value, ok := version.Metrics[name]; ok {
			own.Points = append(own.Points, point{float64(version.Number), value})
			own.Bounds = append(own.Bounds, intervalOf(reports[version.Number], name))
		}
	}
	if len(own.Points) == 0 {
		return &versionCurve{Few: true}, nil
	}
	g := graph{Title: name + " by version", Sentence: curveSentence(len(all) < len(whole.All), own.Bounds), Curves: []curve{own}}
	if limit, what, ok := threshold(all[0].Judge.Gate, name); ok {
		first, last := own.Points[0].X, own.Points[len(own.Points)-1].X
		g.Curves = append(g.Curves, curve{Name: what, Points: []point{{first, limit}, {max(last, first+1), limit}}})
	}
	return &versionCurve{Graph: g}, nil
}

func curveSentence(limited bool, known []bounds) string {
	s := "all kept versions"
	if limited {
		s = "the newest " + strconv.Itoa(mostCurve) + " versions"
	}
	if slices.ContainsFunc(known, bounds.known) {
		s += "; the bars are 95 % intervals"
	}
	return s
}

// reportsOf returns the reports of versions by number. A version whose report cannot be read has none.
func reportsOf(v *visit, all []api.ModelVersion) map[int]*tidemill.Report {
	found := make([]*tidemill.Report, len(all))
	atOnce(len(all), func(i int) {
		if whole, err := askModel(v, strconv.Itoa(all[i].Number)); err == nil {
			found[i] = whole.All[0].Measured
		}
	})
	reports := map[int]*tidemill.Report{}
	for i := range all {
		reports[all[i].Number] = found[i]
	}
	return reports
}

// intervalOf returns the interval of a metric that Tidemill has computed.
func intervalOf(r *tidemill.Report, name string) bounds {
	if r == nil || r.Measured == nil {
		return bounds{}
	}
	e := r.Measured.Accuracy
	switch name {
	case metricAccuracy:
	case metricMacroF1:
		e = r.Measured.MacroF1
	default:
		return bounds{}
	}
	return bounds{e.Low, e.High}
}

var (
	gateMetric = regexp.MustCompile(`\bmetrics\.([A-Za-z0-9_]+)`)
	gateLimit  = regexp.MustCompile(`^metrics\.([A-Za-z0-9_]+)\s*(>=|>|<=|<)\s*([0-9.]+)$`)
)

// curveMetric returns the metric that a chart shows: the first that the gate names, or a main one.
func curveMetric(v *api.ModelVersion) string {
	for _, clause := range v.Judge.Gate {
		if found := gateMetric.FindStringSubmatch(clause); found != nil {
			return found[1]
		}
	}
	if main := mainMetrics(v.Metrics); len(main) > 0 {
		return main[0].Name
	}
	return metricAccuracy
}

// threshold returns the limit of a metric if a clause of the gate is a plain comparison.
func threshold(gate []string, name string) (limit float64, what string, ok bool) {
	for _, clause := range gate {
		found := gateLimit.FindStringSubmatch(strings.TrimSpace(clause))
		if found == nil || found[1] != name {
			continue
		}
		if limit, err := strconv.ParseFloat(found[3], 64); err == nil {
			return limit, "the gate asks for " + found[2] + " " + found[3], true
		}
	}
	return 0, "", false
}

// modelFiles are the files of a version, and its inputs and outputs if they were asked for.
type modelFiles struct {
	fileList
	Signature    *signature
	SignatureURL string // address that asks for the signature
	Refusal      string // reason why there is no signature
}

// signature has the inputs and the outputs of a model, as the Open Inference Protocol names them.
type signature struct {
	Platform string   `json:"platform"`
	Inputs   []tensor `json:"inputs"`
	Outputs  []tensor `json:"outputs"`
	Error    string   `json:"error"`
}

type tensor struct {
	Name     string  `json:"name"`
	Datatype string  `json:"datatype"`
	Shape    []int64 `json:"shape"`
}

func loadModelFiles(v *visit) (*modelFiles, error) {
	q := v.pick("after")
	q.Set("model", v.query("name"))
	q.Set("version", chosen(v))
	q.Set("limit", "100")
	files, err := get[api.ArtifactFiles](v, "/api/v1/model/files", q)
	if err != nil {
		return nil, err
	}
	l := modelFiles{fileList: *v.fileList(files)}
	if v.query("signature") == "" {
		l.SignatureURL = queryURL("/ui/model", "name", v.query("name"), "version", strconv.Itoa(files.Version), "against", v.query("against"), "signature", "1") + "#region-files"
		return &l, nil
	}
	return &l, l.askSignature(v)
}

// askSignature gets the inputs and outputs of the model. The gateway loads the model for it, so a page asks
// only if a person wants it.
func (l *modelFiles) askSignature(v *visit) error {
	status, body, err := v.ask(http.MethodGet, "/v2/models/"+l.Model+"/versions/"+strconv.Itoa(l.Version), nil, nil)
	if err != nil {
		return err
	}
	var s signature
	if readErr := json.Unmarshal(body, &s); readErr == nil && status == http.StatusOK {
		l.Signature = &s
		return nil
	}
	if l.Refusal = s.Error; l.Refusal == "" {
		l.Refusal = problemOf(max(status, http.StatusBadRequest), body).Error()
	}
	return nil
}

func showModelFiles(_ *visit, l *modelFiles) Node {
	version := strconv.Itoa(l.Version)
	parts := list(h.H2(say("Files of version "+version+" "), l.sum()))
	if len(l.Files) == 0 {
		parts = list(parts, nothing(say("The version has no files.")))
	} else {
		parts = list(parts, scroll("rows narrow", heads("Path", "#Size", "SHA-256"), rows(each(l.Files, func(f *api.File) Node {
			return row(titled(f.Path), rowName(download(queryURL("/api/v1/model/file", "model", l.Model, "version", version, "path", f.Path), text(f.Path))), figure(say(size(f.Size))), cell(h.Code(say(f.Digest))))
		}))), pager("rows", l.NextURL, l.FirstURL))
	}
	return list(parts, note(say("Tree "), h.Code(say(l.Tree))), h.H3(say("Inputs and outputs")), l.signature())
}

func (l *modelFiles) signature() Node {
	switch {
	case l.Signature != nil:
		show := func(direction string) func(*tensor) Node {
			return func(t *tensor) Node {
				return h.Tr(cell(say(direction)), rowName(text(t.Name)), cell(say(word(t.Datatype))), cell(say(fmt.Sprint(t.Shape))))
			}
		}
		return scroll("narrow", heads("Direction", "Name", "Type", "Shape"), rows(each(l.Signature.Inputs, show("input")), each(l.Signature.Outputs, show("output"))))
	case l.Refusal != "":
		return h.P(h.Class("problem"), say(titled(l.Refusal)))
	}
	return h.P(button(l.SignatureURL, "Load the model and show them"))
}
