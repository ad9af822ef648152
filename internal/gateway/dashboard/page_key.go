package dashboard

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

func keyPages() []*page {
	return []*page{{path: "/ui/key", nav: "/", title: func(v *visit) string { return "Key " + word(v.query("key")) }, main: loaded(findKey, showKeyPage), regions: []region{
		part("models", "approvals", loadKeyModels, showKeyModels),
		part("live", "key:{key}", loadKeyLive, showKeyLive),
		part("scorers", "scorers", loadKeyScorers, showKeyScorers),
		part("answers", "", loadKeyAnswers, showAnswers),
		part("line", "runs approvals dead-letters scorers", loadKeyLine, showKeyLine),
	}}}
}

func showKeyPage(v *view, c *keyCounts) Node {
	key := v.Q("key")
	runs, letters := count(c.Runs), count(c.Letters)
	return list(h.H1(say(v.Title)),
		actions(button(queryURL("/ui/runs", "key", key), runs+" "+oneOf(runs, "run", "runs")), say(" "),
			button(queryURL("/ui/dead-letters", "key", key), letters+" open dead "+oneOf(letters, "letter", "letters")), say(" "),
			button(trialsURL("key", key), "Trials"), say(" "),
			v.ActAs("Forget the key…", "forget", "key", key)),
		v.Region("models"), v.Region("live"), v.Region("scorers"), v.Region("answers"), v.Region("line"))
}

// keyCounts says how much is known about a key.
type keyCounts struct {
	Runs, Letters *int
	Models        int
}

// findKey returns a problem if nothing is known about the key. A part that cannot be read counts as known,
// because its region says why it cannot be read.
func findKey(v *visit) (*keyCounts, error) {
	q := url.Values{"key": {v.query("key")}, "limit": {"1"}}
	if v.query("key") == "" {
		return nil, &api.Problem{Status: http.StatusBadRequest, Title: "which key?", Detail: "give a key in the address, or search for one with /"}
	}
	runs, runsErr := get[api.Runs](v, "/api/v1/runs", q)
	models, modelsErr := get[api.Models](v, "/api/v1/models", q)
	letters, lettersErr := get[api.DeadLetters](v, "/api/v1/dead-letters", q)
	c := keyCounts{Runs: runs.Total, Models: models.Total}
	if lettersErr == nil {
		c.Letters = &letters.Total
	}
	if errors.Join(runsErr, modelsErr, lettersErr) == nil && len(runs.Runs)+models.Total+letters.Total == 0 {
		return nil, &api.Problem{Status: http.StatusNotFound, Title: "there is no such key",
			Detail: "no run, model or open dead letter has this key, or you may not see it; a forgotten key has none left"}
	}
	return &c, nil
}

// modelsOfKey returns the models of the page's key.
func modelsOfKey(v *visit) ([]api.ModelShown, error) {
	models, err := get[api.Models](v, "/api/v1/models", url.Values{"key": {v.query("key")}, "limit": {"100"}})
	return models.Models, err
}

func loadKeyModels(v *visit) ([]modelRow, error) {
	models, err := modelsOfKey(v)
	rows := make([]modelRow, len(models))
	for i := range models {
		rows[i] = rowOf(&models[i])
	}
	return rows, err
}

func showKeyModels(v *visit, all []modelRow) Node {
	if len(all) == 0 {
		return list(h.H2(say("Models")), nothing(say("It has no model.")))
	}
	return list(h.H2(say("Models")), scroll("rows models", heads("Recipe", "Model", "#Champion", "Main metrics", "Trained", "Newest version", "Act"), rows(each(all, func(m *modelRow) Node {
		return row(titled(m.Name), cell(text(m.Recipe)), rowName(modelLink(m.Name, 0)), figure(m.champion()), h.Td(h.Class("pair"), metricsLine(m.Main)), cell(v.ago(m.Began)),
			cell(m.newest()),
			buttons(when(m.Waiting, v.promote(m), say(" ")), when(m.Champion > 1, v.Act("rollback", "model", m.Name), say(" ")), v.pinOrUnpin(m), say(" "), v.retrain(m)))
	}))))
}

func (v *visit) pinOrUnpin(m *modelRow) Node {
	if m.Pinned {
		return v.Act("unpin", "model", m.Name)
	}
	return when(m.Champion != 0, v.Act("pin", "model", m.Name))
}

// keyScorer is a scorer that has a version of one of the key's models in use.
type keyScorer struct {
	api.ScorerVersion
	Scorer  string
	Numbers *api.ScorerNumbers // figures for all keys
}

func loadKeyScorers(v *visit) ([]keyScorer, error) {
	models, err := modelsOfKey(v)
	if err != nil {
		return nil, err
	}
	scorers, err := scorersShown(v)
	if err != nil {
		return nil, err
	}
	var all []keyScorer
	for _, s := range scorers {
		for _, used := range s.Versions {
			if hasModel(models, used.Model) {
				all = append(all, keyScorer{used, s.Name, s.Numbers})
			}
		}
	}
	return all, nil
}

func showKeyScorers(v *visit, all []keyScorer) Node {
	if len(all) == 0 {
		return list(h.H2(say("Scored by")), nothing(say("No scorer has reported that it uses a version of this key. Scorers report the models that they swapped recently.")))
	}
	return list(h.H2(say("Scored by")), h.Table(h.Class("narrow"), heads("Scorer", "Version", "Since", "#All keys"), rows(each(all, func(s *keyScorer) Node {
		speed := "?"
		if s.Numbers != nil {
			speed = rate(s.Numbers.Rate) + "/s"
		}
		return h.Tr(rowName(anchor(scorerURL(s.Scorer), text(s.Scorer))), cell(modelLink(s.Model, s.Version)), cell(v.ago(s.Since)), figure(say(speed)))
	}))))
}

func hasModel(models []api.ModelShown, name string) bool {
	return slices.ContainsFunc(models, func(m api.ModelShown) bool { return m.Name == name })
}

// scorersShown returns all scorers with their swaps.
func scorersShown(v *visit) ([]api.ScorerShown, error) {
	list, err := get[api.Scorers](v, "/api/v1/scorers", nil)
	if err != nil {
		return nil, err
	}
	var all []api.ScorerShown
	for _, s := range list.Scorers {
		shown, err := get[api.ScorerShown](v, "/api/v1/scorers/"+s.Name, nil)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		all = append(all, shown)
	}
	return all, nil
}

// moment is a line of the time line.
type moment struct {
	At      time.Time
	Kind    string // choice of the filter
	State   string // word with a sign
	Text    string
	By      string
	Run     string
	Model   string
	Version int
	Letter  string
	Dataset string
	Commit  string
	Scorer  string
	Cause   tidemill.Cause
}

// key identifies the line when the page is refreshed.
func (m *moment) key() string {
	return word(m.Kind + m.State + m.At.Format(time.RFC3339Nano) + strconv.Itoa(m.Version))
}

// The kinds of lines.
const (
	momentRun     = "runs"
	momentVersion = "versions"
	momentData    = "data"
	momentLetter  = "dead letters"
	momentSwap    = "swaps"
)

// keyLine is the time line of a key.
type keyLine struct {
	Moments []moment
	Kinds   []string
	Notes   []string // parts that are missing, and why
	Older   string   // address of older lines
	First   string   // address of the newest lines
}

// mostMoments is the number of lines of a page. A page has all lines of its last moment.
const mostMoments = 100

// lineDraft is an unfinished time line.
type lineDraft struct {
	v        *visit
	moments  []moment
	notes    []string
	datasets []string
	models   []api.ModelShown
}

func loadKeyLine(v *visit) (*keyLine, error) {
	d := lineDraft{v: v}
	d.add("runs", d.addRuns)
	d.add("models", d.addModels)
	d.add("dead letters", d.addLetters)
	d.add("data", d.addCommits)
	d.add("swaps", d.addSwaps)
	l := keyLine{Kinds: []string{momentRun, momentVersion, momentData, momentLetter, momentSwap}, Notes: d.notes}
	before, _ := time.Parse(time.RFC3339Nano, v.query("before")) // a bad time begins at the newest line
	for _, m := range d.moments {
		if kind := v.query("kind"); (kind == "" || kind == m.Kind) && (before.IsZero() || m.At.Before(before)) {
			l.Moments = append(l.Moments, m)
		}
	}
	slices.SortStableFunc(l.Moments, func(a, b moment) int { return b.At.Compare(a.At) })
	next, n := "", mostMoments
	for n < len(l.Moments) && l.Moments[n].At.Equal(l.Moments[n-1].At) { // the next page has only what is older
		n++
	}
	if len(l.Moments) > n {
		l.Moments = l.Moments[:n]
		next = l.Moments[n-1].At.UTC().Format(time.RFC3339Nano)
	}
	l.Older, l.First = v.pageURLs("before", next)
	return &l, nil
}

func showKeyLine(v *visit, l *keyLine) Node {
	parts := list(h.H2(say("Time line")), filter("/ui/key", hidden("key", v.Q("key")), choose(v, "Show", "kind", l.Kinds), submitButton("Filter")),
		each(l.Notes, func(text *string) Node { return h.P(h.Class("problem"), say(titled(*text))) }))
	if len(l.Moments) == 0 {
		if v.Q("kind") != "" {
			return list(parts, nothing(say("Nothing of this kind.")))
		}
		return list(parts, nothing(say("Nothing yet.")))
	}
	return list(parts, scroll("rows models line", heads("When", "What", "Which", "Details"), rows(each(l.Moments, func(m *moment) Node {
		return row(m.key(), cell(v.ago(m.At)), cell(badge(m.State)), rowName(m.which()), cell(m.details()))
	}))), pager("rows", l.Older, l.First))
}

// which is the run, dead letter, commit or version of a line.
func (m *moment) which() Node {
	switch {
	case m.Run != "":
		return list(say("run "), shortRunLink(m.Run))
	case m.Letter != "":
		return anchor(letterURL(m.Letter), say(shortened(m.Letter)))
	case m.Commit != "":
		return list(anchor(whyURL("commit/"+m.Dataset+"@"+m.Commit), say(shortened(m.Commit))), say(" of "), anchor(dataURL(m.Dataset), text(m.Dataset)))
	}
	return modelLink(m.Model, m.Version)
}

func (m *moment) details() Node {
	return list(when(m.Scorer != "", say("scorer "), anchor(scorerURL(m.Scorer), text(m.Scorer)), say(" ")), say(titled(m.Text)),
		when(m.By != "", say(", by "), text(m.By)), when(m.Cause.ID != "", say(", event "), eventLink(m.Cause.Source, m.Cause.ID)))
}

// add calls a function that adds lines. An error becomes a note, so that the other lines are shown.
func (d *lineDraft) add(what string, fn func() error) {
	if err := fn(); err != nil {
		d.notes = append(d.notes, what+": "+err.Error())
	}
}

// noteLimit notes that older lines of some kind are missing, if an answer has a next page.
func (d *lineDraft) noteLimit(what string, n int, next string) {
	if next != "" {
		d.notes = append(d.notes, "only the newest "+count(n)+" "+what+" are in this time line")
	}
}

func (d *lineDraft) addRuns() error {
	runs, err := get[api.Runs](d.v, "/api/v1/runs", url.Values{"key": {d.v.query("key")}, "limit": {"1000"}})
	d.noteLimit("runs", len(runs.Runs), runs.Next)
	for i := range runs.Runs {
		r := &runs.Runs[i]
		d.moments = append(d.moments, moment{At: r.Asking, Kind: momentRun, State: "requested", Text: "recipe " + r.Recipe, By: r.By, Run: r.ID, Cause: r.First})
		if n := len(r.Attempts); n > 0 && !r.State.Ended() {
			d.moments = append(d.moments, moment{At: r.Attempts[n-1].Started, Kind: momentRun, State: string(r.State), Text: "attempt " + strconv.Itoa(n), Run: r.ID})
		}
		if r.State.Ended() {
			end := moment{At: r.End, Kind: momentRun, State: string(r.State), Text: r.Reason, Run: r.ID}
			if r.Cancel != nil {
				end.By = r.Cancel.By
			}
			d.moments = append(d.moments, end)
		}
	}
	return err
}

func (d *lineDraft) addModels() (err error) {
	if d.models, err = modelsOfKey(d.v); err != nil {
		return err
	}
	for _, m := range d.models {
		whole, err := get[api.ModelWhole](d.v, "/api/v1/model", url.Values{"model": {m.Name}})
		if err != nil {
			return err
		}
		for i := range whole.All {
			d.addVersion(&whole.All[i])
		}
		for _, c := range whole.Changes {
			if c.Action != tidemill.ActionJudge && c.Action != tidemill.ActionConclude && c.Action != tidemill.ActionPin || whole.Find(c.Version) == nil {
				d.moments = append(d.moments, moment{At: c.At, Kind: momentVersion, State: whole.How(&c), Text: c.Reason, By: c.By, Model: m.Name, Version: c.Version})
			}
		}
		if p := whole.Pin; p != nil {
			d.moments = append(d.moments, moment{At: p.At, Kind: momentVersion, State: "pinned", Text: p.Reason, By: p.By, Model: m.Name, Version: whole.Champion})
		}
		for _, drift := range whole.Drifts {
			d.moments = append(d.moments, moment{At: drift.At, Kind: momentVersion, State: "drifting", Text: drift.Figure + ": " + drift.Value + " was " + percent(drift.Before, 1) + " and is " + percent(drift.Now, 1), Model: m.Name, Version: drift.Version})
		}
		if u := whole.Unserved; u != nil {
			d.moments = append(d.moments, moment{At: u.At, Kind: momentSwap, State: "unserved", Text: u.Error, Model: m.Name, Scorer: u.Scorer})
		}
	}
	return nil
}

func (d *lineDraft) addVersion(v *api.ModelVersion) {
	d.moments = append(d.moments, moment{At: v.At, Kind: momentVersion, State: string(v.State), Model: v.Model, Version: v.Number, Text: judgementOf(v)})
	for _, in := range v.Inputs {
		if in.Dataset != "" && !slices.Contains(d.datasets, in.Dataset) {
			d.datasets = append(d.datasets, in.Dataset)
		}
	}
}

func (d *lineDraft) addLetters() error {
	letters, err := get[api.DeadLetters](d.v, "/api/v1/dead-letters", url.Values{"key": {d.v.query("key")}, "limit": {"200"}})
	d.noteLimit("dead letters", len(letters.DeadLetters), letters.Cursor)
	for i := range letters.DeadLetters {
		l := &letters.DeadLetters[i]
		d.moments = append(d.moments, moment{At: l.Written, Kind: momentLetter, State: "dead letter", Text: cmp.Or(l.Trigger, l.Scorer) + ": " + l.Reason, Letter: l.ID})
	}
	return err
}

// mostDatasets is the number of datasets whose commits a time line has.
const mostDatasets = 8

// addCommits adds the commits of the datasets that the versions were made from. A dataset may be gone, or be
// hidden from the caller.
func (d *lineDraft) addCommits() error {
	for _, name := range d.datasets[:min(len(d.datasets), mostDatasets)] {
		log, err := get[api.Log](d.v, "/api/v1/data/log", url.Values{"dataset": {name}, "branch": {"main"}, "limit": {"100"}})
		var p *api.Problem
		if errors.As(err, &p) && p.Status < http.StatusInternalServerError {
			continue
		}
		if err != nil {
			return err
		}
		d.noteLimit("commits of "+word(name), len(log.Commits), log.Next)
		for _, c := range log.Commits {
			text := "+" + strconv.Itoa(c.Added) + " ~" + strconv.Itoa(c.Changed) + " −" + strconv.Itoa(c.Removed) + " files"
			if c.Message != "" {
				text += ": " + c.Message
			}
			d.moments = append(d.moments, moment{At: c.Time, Kind: momentData, State: "committed", Text: text, By: c.By, Dataset: name, Commit: c.ID})
		}
	}
	return nil
}

func (d *lineDraft) addSwaps() error {
	scorers, err := scorersShown(d.v)
	for _, s := range scorers {
		for _, swap := range s.Swaps {
			if hasModel(d.models, swap.Model) {
				d.moments = append(d.moments, moment{At: swap.At, Kind: momentSwap, State: "scores", Model: swap.Model, Version: swap.Version, Scorer: s.Name,
					Text: "partition " + strconv.Itoa(int(swap.Partition)) + " of " + swap.Stream})
			}
		}
	}
	return err
}
