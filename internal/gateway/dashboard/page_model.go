package dashboard

import (
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

func modelTitle(v *visit) string { return "Model " + word(v.query("name")) }

// toVersion sends a name such as intent/bot-1@7 to the page of that version.
func toVersion(v *visit) string {
	name, which, found := strings.Cut(v.query("name"), "@")
	if !found {
		return ""
	}
	return queryURL("/ui/model", "name", name, "version", which)
}

// askModel gets a model with one version and its report. An empty version is for all versions without reports.
func askModel(v *visit, version string) (api.ModelWhole, error) {
	q := url.Values{"model": {v.query("name")}}
	if version != "" {
		q.Set("version", version)
	}
	return get[api.ModelWhole](v, "/api/v1/model", q)
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

func loadModel(v *visit) (any, error) {
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
	return m, nil
}

// judgementOf returns the sentence of a judgement without the name of its version, which the page says already.
func judgementOf(v *api.ModelVersion) string {
	if v.Judgement == nil {
		return ""
	}
	return strings.TrimPrefix(v.Judgement.Sentence, "version "+strconv.Itoa(v.Number)+" of "+v.Model+" ")
}

// loadChanges returns the changes of the champion, newest first.
func loadChanges(v *visit) (any, error) {
	whole, err := askModel(v, "")
	slices.Reverse(whole.Changes)
	return whole.Changes, err
}

// changeWord says how a version became the champion.
func changeWord(a tidemill.Action) string {
	switch a {
	case tidemill.ActionJudge:
		return "promoted by its gate"
	case tidemill.ActionPromote:
		return "promoted"
	case tidemill.ActionRollback:
		return "rolled back"
	case tidemill.ActionPin:
		return "pinned"
	case tidemill.ActionUnpin:
		return "unpinned"
	}
	return word(a)
}

// VersionURL returns the address of the page about another version of the model.
func (v *visit) VersionURL(version int) string {
	return versionURL(v.query("name"), version)
}

// mostCurve is the number of versions in the chart. The interval of each is in its report, which the API
// reads from the store.
const mostCurve = 12

// versionCurve is the chart of a model.
type versionCurve struct {
	Graph graph
	Few   bool // whether there is nothing to draw
}

func loadCurve(v *visit) (any, error) {
	whole, err := askModel(v, "")
	if err != nil {
		return nil, err
	}
	all := whole.All[:min(len(whole.All), mostCurve)]
	if len(all) == 0 {
		return versionCurve{Few: true}, nil
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
		return versionCurve{Few: true}, nil
	}
	g := graph{Title: name + " by version", Sentence: curveSentence(len(all) < len(whole.All), own.Bounds), Curves: []curve{own}}
	if limit, what, ok := threshold(all[0].Judge.Gate, name); ok {
		first, last := own.Points[0].X, own.Points[len(own.Points)-1].X
		g.Curves = append(g.Curves, curve{Name: what, Points: []point{{first, limit}, {max(last, first+1), limit}}})
	}
	return versionCurve{Graph: g}, nil
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
	var reading sync.WaitGroup
	for i := range all {
		reading.Go(func() {
			if whole, err := askModel(v, strconv.Itoa(all[i].Number)); err == nil && len(whole.All) == 1 {
				found[i] = whole.All[0].Measured
			}
		})
	}
	reading.Wait()
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

// judged is a version with its judgement, compared with another version.
type judged struct {
	Version   api.ModelVersion
	Model     fold.Model
	Against   int  // version to compare with; 0 for none
	Same      bool // whether both were measured on the same examples by the same run
	Lead      *tidemill.Estimate
	Compared  []comparedMetric
	Confusion *confusion
	Numbers   []int // versions to choose from, newest first
}

func loadJudged(v *visit) (any, error) {
	whole, err := askModel(v, chosen(v))
	if err != nil {
		return nil, err
	}
	j := judged{Version: whole.All[0], Model: whole.Model}
	for _, held := range slices.Backward(whole.Versions) {
		j.Numbers = append(j.Numbers, held.Number)
	}
	j.Numbers = j.Numbers[:min(len(j.Numbers), mostVersions)]
	other, err := j.findOther(v)
	if err != nil {
		return nil, err
	}
	j.compare(other)
	return j, nil
}

// findOther returns the report of the version to compare with: the requested one, or else the champion or
// the one before. The run of a version measures its champion on the same data, so those figures come first.
func (j *judged) findOther(v *visit) (*tidemill.Report, error) {
	which := v.query("against")
	switch {
	case which != "":
		j.Against = j.Model.Which(which)
		if j.Against == 0 {
			j.Against, _ = strconv.Atoi(which) // a dropped version, which the API reports
		}
	case j.Model.Champion != 0 && j.Model.Champion != j.Version.Number:
		j.Against = j.Model.Champion
	case j.Model.Previous != 0 && j.Model.Previous != j.Version.Number && j.Model.Find(j.Model.Previous) != nil:
		j.Against = j.Model.Previous
	}
	if j.Against == 0 || j.Against == j.Version.Number {
		j.Against = 0
		return nil, nil
	}
	if b := j.Version.Measured.Champion; b != nil && b.Version == j.Against {
		j.Same, j.Lead = true, b.Lead
		return &tidemill.Report{Metrics: b.Metrics, Measured: b.Measured}, nil
	}
	whole, err := askModel(v, strconv.Itoa(j.Against))
	if err != nil {
		return nil, err
	}
	return whole.All[0].Measured, nil
}

func (j *judged) compare(other *tidemill.Report) {
	own := j.Version.Measured
	j.Compared = comparedMetrics(own, other)
	var theirs *tidemill.Figures
	if other != nil {
		theirs = other.Measured
	}
	if own.Measured != nil {
		j.Confusion = confusionOf(own.Measured, theirs)
	}
}

// comparedMetric is a metric of two versions.
type comparedMetric struct {
	Name        string
	Own, Theirs *float64
	Bounds      bounds
	TheirBounds bounds
}

// Difference returns the difference with its sign; empty if one of the values is not known.
func (c comparedMetric) Difference() string {
	if c.Own == nil || c.Theirs == nil {
		return ""
	}
	return signed(*c.Own - *c.Theirs)
}

// signed writes a difference with its sign; 0 has none.
func signed(f float64) string {
	const tenThousand = 1e4 // more digits than of the metrics themselves say nothing
	if math.Abs(f) < 1 {
		f = math.Round(f*tenThousand) / tenThousand
	}
	if f == 0 {
		return number(0)
	}
	return withSign(f, number(math.Abs(f)))
}

func comparedMetrics(own, theirs *tidemill.Report) (all []comparedMetric) {
	values := own.Metrics
	if theirs != nil {
		values = map[string]float64{}
		for _, r := range []*tidemill.Report{own, theirs} {
			for name := range r.Metrics {
				values[name] = 0
			}
		}
	}
	for _, m := range sortedMetrics(values, []string{metricAccuracy, metricMacroF1}) {
		c := comparedMetric{Name: m.Name, Bounds: intervalOf(own, m.Name), TheirBounds: intervalOf(theirs, m.Name)}
		if value, ok := own.Metrics[m.Name]; ok {
			c.Own = &value
		}
		if theirs != nil {
			if value, ok := theirs.Metrics[m.Name]; ok {
				c.Theirs = &value
			}
		}
		all = append(all, c)
	}
	return all[:min(len(all), mostVersions)]
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

func loadModelFiles(v *visit) (any, error) {
	q := v.pick("after")
	q.Set("model", v.query("name"))
	q.Set("version", chosen(v))
	q.Set("limit", "100")
	files, err := get[api.ArtifactFiles](v, "/api/v1/model/files", q)
	if err != nil {
		return nil, err
	}
	l := modelFiles{fileList: fileList{ArtifactFiles: files}}
	for _, f := range files.Files {
		l.Total += f.Size
	}
	l.NextURL, _ = v.pageURLs("after", files.Next)
	if v.query("signature") == "" {
		l.SignatureURL = queryURL("/ui/model", "name", v.query("name"), "version", strconv.Itoa(files.Version), "against", v.query("against"), "signature", "1") + "#region-files"
		return l, nil
	}
	return l, l.askSignature(v)
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
