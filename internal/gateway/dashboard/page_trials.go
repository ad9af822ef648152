package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/models/evidence"
)

func trialPages() []*page {
	return []*page{
		{path: "/ui/trials", nav: "/ui/trials", title: named("Trials"), main: still(showTrialsPage), regions: []region{
			part("running", "trials", loadRunningTrials, showRunningTrials),
			part("ended", "approvals", loadEndedTrials, showEndedTrials),
		}},
		{path: "/ui/trial", nav: "/ui/trials", title: trialTitle, main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("trial")) }),
			regions: []region{part("trial", "trials model:{model}", loadTrial, showTrialWhole)}},
	}
}

func trialTitle(v *visit) string {
	return "Trial of version " + word(v.query("version")) + " of " + word(v.query("model"))
}

func trialURL(model string, version int) string {
	return queryURL("/ui/trial", "model", model, "version", strconv.Itoa(version))
}

// trialsURL is the address of the trials of a recipe or of a key.
func trialsURL(pairs ...string) string { return queryURL("/ui/trials", pairs...) }

func trialLink(model string, version int) Node {
	return linked(trialURL(model, version), model, text(tidemill.VersionName(model, version)))
}

func showTrialsPage(v *view) Node {
	return list(h.H1(say(v.Title)), lead(say("A candidate that has passed its gate answers the same events as the champion. Nothing of its answers leaves Tidemill, and the truth about them decides.")),
		filter("/ui/trials", v.input("Recipe", "recipe", "12", ""), v.input("Key", "key", "16", ""), submitButton("Filter"), when(len(v.pick("recipe", "key")) > 0, say(" "), anchor("/ui/trials", say("All trials")))),
		v.Region("running"), v.Region("ended"))
}

// rowsOfTrials is the number of trials on a page.
const rowsOfTrials = 20

// trialState is a trial that runs or has ended.
type trialState struct {
	Model, Recipe, Key, Scorer string
	Version, Champion          int
	Began, Ended               time.Time // Ended is zero while the trial runs
	Terms                      tidemill.TrialTerms
	tidemill.TrialCounts
	Lead     tidemill.Estimate
	P99      float64
	Budget   tidemill.TrialBudget
	Clauses  []tidemill.Clause
	Steps    []tidemill.TrialStep
	Text     string
	Error    string
	Behind   int64
	State    string // passed, refused, given up or the state of a running trial
	Now      tidemill.VersionState
	Verdict  *tidemill.TrialVerdict // nil while the trial runs, or if there is none
	Evidence bool                   // whether the figures are known
}

func runningTrial(t *api.Trial) trialState {
	s := trialState{Model: t.Model, Recipe: t.Recipe, Key: t.Key, Scorer: t.Scorer, Version: t.Version, Champion: t.Champion, Began: t.Began, Terms: t.Terms, TrialCounts: t.TrialCounts, Lead: t.Lead,
		P99: t.P99, Budget: t.Budget, Clauses: t.Clauses, Steps: t.Steps, Text: t.Text, Error: t.Error, Behind: t.Behind, State: "running", Now: tidemill.VersionTrial, Evidence: true}
	if t.Error != "" {
		s.State = "waiting"
	}
	return s
}

func endedTrialOf(t *api.EndedTrial) trialState {
	s := trialState{Model: t.Model, Recipe: t.Recipe, Key: t.Key, Version: t.Version, Ended: t.Ended, Text: t.Text, State: string(tidemill.TrialGivenUp), Now: t.State, Clauses: t.Clauses}
	if t.Passed {
		s.State = string(tidemill.TrialPassed)
	}
	if j := t.Verdict; j != nil {
		s.Scorer, s.Champion, s.Began, s.Terms, s.TrialCounts, s.Lead, s.P99, s.Budget, s.Steps = j.Scorer, j.Champion, j.Began, j.Terms, j.TrialCounts, j.Lead, j.P99, j.Budget, j.Steps
		s.State, s.Verdict, s.Evidence = string(j.Outcome), j, true
	}
	return s
}

// trialList is a page of trials.
type trialList struct {
	Trials         []trialState
	Total          int // number of running trials
	Filtered       bool
	NextURL, First string
}

func askTrials(v *visit) url.Values {
	q := v.pick("recipe", "key")
	q.Set("limit", strconv.Itoa(rowsOfTrials))
	return q
}

func loadRunningTrials(v *visit) (*trialList, error) {
	q := askTrials(v)
	q.Set("after", v.query("after"))
	all, err := get[api.TrialList](v, "/api/v1/trials", q)
	if err != nil {
		return nil, err
	}
	l := trialList{Total: all.Total, Filtered: len(v.pick("recipe", "key")) > 0}
	for i := range all.Trials {
		l.Trials = append(l.Trials, runningTrial(&all.Trials[i]))
	}
	l.NextURL, l.First = v.pageURLs("after", all.Next)
	return &l, nil
}

func loadEndedTrials(v *visit) (*trialList, error) {
	q := askTrials(v)
	q.Set("after", v.query("ended"))
	all, err := get[api.EndedTrials](v, "/api/v1/trials/ended", q)
	if err != nil {
		return nil, err
	}
	l := trialList{Filtered: len(v.pick("recipe", "key")) > 0}
	for i := range all.Trials {
		l.Trials = append(l.Trials, endedTrialOf(&all.Trials[i]))
	}
	l.NextURL, l.First = v.pageURLs("ended", all.Next)
	return &l, nil
}

func showRunningTrials(v *visit, l *trialList) Node {
	title := h.H2(say("Running "), quiet(say(count(l.Total))))
	switch {
	case len(l.Trials) == 0 && l.Filtered:
		return list(title, nothing(say("No running trial matches this filter.")))
	case len(l.Trials) == 0:
		return list(title, nothing(say("No candidate is on trial. A recipe with "), h.Code(say("trial:")), say(" tries each version that passes its gate.")))
	}
	return list(title, note(say("Lead: accuracy of the candidate minus that of the champion, in points. Its bounds stay valid however often you look.")),
		scroll("rows models", heads("Candidate", "Since", "#Lead, points", "Course", "#Labelled", "#Disagrees", "#p99", "#Errors", "Clauses for a promotion"), rows(each(l.Trials, func(t *trialState) Node {
			return row(tidemill.VersionName(t.Model, t.Version), rowName(trialLink(t.Model, t.Version), h.Div(h.Class("none"), say("against version "+strconv.Itoa(t.Champion)))),
				cell(v.ago(t.Began), h.Div(h.Class("none"), together(say("given up "), v.ago(t.Began.Add(t.Terms.Until))))), t.leadCell(), cell(t.spark()), t.figures(),
				cell(clausesOf(&tidemill.Judgement{Clauses: t.Clauses}), t.obstacle()))
		}))), pager("running trials", l.NextURL, l.First))
}

// obstacle says why a running trial does not advance.
func (t *trialState) obstacle() Node {
	switch {
	case t.Error != "":
		return h.Div(badge("waiting"), say(" "), say(titled(t.Error)))
	case t.Behind > 0:
		return h.Div(h.Class("none"), say("reads the past: "+count(t.Behind)+" answers left"))
	}
	return nil
}

func showEndedTrials(v *visit, l *trialList) Node {
	title := h.H2(say("Ended"))
	if len(l.Trials) == 0 {
		return list(title, nothing(say("No trial has ended, or none matches this filter.")))
	}
	return list(title, scroll("rows models", heads("Candidate", "Result", "#Lead, points", "Course", "#Labelled", "#Disagrees", "#p99", "#Errors", "Verdict"), rows(each(l.Trials, func(t *trialState) Node {
		verdict := list(say(titled(t.sentence())), when(t.Verdict != nil, h.Div(command(t.again()))))
		return row(tidemill.VersionName(t.Model, t.Version)+t.Ended.Format(time.RFC3339Nano), rowName(trialLink(t.Model, t.Version), when(t.Champion != 0, h.Div(h.Class("none"), say("against version "+strconv.Itoa(t.Champion))))),
			cell(badge(t.State), h.Div(v.ago(t.Ended))), t.leadCell(), cell(t.spark()), t.figures(), cell(verdict))
	}))), pager("ended trials", l.NextURL, l.First))
}

// sentence is the end of a trial in words, without the name of the version, which the row has.
func (t *trialState) sentence() string {
	if t.Text == "" {
		return "The version is dropped, so its verdict is not known any more"
	}
	s := strings.TrimPrefix(t.Text, "version "+strconv.Itoa(t.Version)+" of "+t.Model)
	for _, result := range []string{" passes its trial", " is refused by its trial"} { // the badge says it
		s = strings.TrimPrefix(s, result)
	}
	return strings.TrimSuffix(strings.TrimLeft(s, ": "), ".")
}

// again is the command that computes the verdict again.
func (t *trialState) again() string {
	return newCommand("judge").flag("again", tidemill.VersionName(t.Model, t.Version)).String()
}

// figures are the cells with the counts of a trial.
func (t *trialState) figures() Node {
	if !t.Evidence {
		return list(figure(dash()), figure(dash()), figure(dash()), figure(dash()))
	}
	speed, disagrees := "–", "–"
	if t.Answered > 0 {
		speed, disagrees = number(t.P99)+" ms", points(t.disagreement())+" %"
	}
	labelled := count(t.Labelled)
	if t.Labelled < t.Terms.AtLeast {
		labelled += " of " + count(t.Terms.AtLeast)
	}
	return list(figure(say(labelled)), figure(say(disagrees)), figure(say(speed)), figure(say(count(t.Errors))))
}

// disagreement is the share of the answered events with different labels.
func (t *trialState) disagreement() float64 {
	return float64(t.Answered-t.Agreed) / float64(max(t.Answered, 1))
}

// leadCell shows the lead with its bounds; a dash before there is a label.
func (t *trialState) leadCell() Node {
	if t.Labelled == 0 {
		return figure(dash())
	}
	return figure(say(signedPoints(t.Lead.Value)), h.Div(h.Class("none"), say(signedPoints(t.Lead.Low)+" to "+signedPoints(t.Lead.High))))
}

// points writes a share in points, with one decimal.
func points(x float64) string { return strconv.FormatFloat(math.Abs(100*x), 'f', 1, 64) }

// leadAt is the lead after some labelled events, in points.
type leadAt struct{ Labelled, Low, Value, High float64 }

// course computes the lead after each step of a trial, at the level that counts now. It leaves out the first steps whose
// bounds are so wide that nothing else could be seen.
func (t *trialState) course(steps []tidemill.TrialStep) (all []leadAt) {
	alpha := cmp.Or(t.Terms.Alpha, 0.05)
	widest := math.Inf(1)
	for _, s := range slices.Backward(steps) {
		l := evidence.Lead{Alpha: cmp.Or(t.Budget.Level, alpha), Won: s.Won, Lost: s.Lost, Tied: s.Tied}
		low, value, high := l.Bounds()
		if l.Alpha != alpha {
			l.Alpha = alpha
			_, _, high = l.Bounds()
		}
		if len(all) == 0 {
			widest = 4 * max(math.Abs(low), math.Abs(high))
		}
		if low < -widest || high > widest {
			break
		}
		all = append(all, leadAt{float64(s.Labelled), 100 * low, 100 * value, 100 * high})
	}
	slices.Reverse(all)
	return all
}

const sparkWidth, sparkHeight = 112, 32

// spark draws the course of the lead in a cell: a band between the bounds, the lead, and a line at 0. The numbers are in
// the cell before.
func (t *trialState) spark() Node {
	var few []tidemill.TrialStep // each costs a tenth of a millisecond
	for i, s := range slices.Backward(t.Steps) {
		if (len(t.Steps)-1-i)%2 == 0 {
			few = append([]tidemill.TrialStep{s}, few...)
		}
	}
	all := t.course(few)
	if len(all) < 2 {
		return nil
	}
	b := box{minX: all[0].Labelled, maxX: all[len(all)-1].Labelled}
	for _, p := range all {
		b.minY, b.maxY = min(b.minY, p.Low), max(b.maxY, p.High)
	}
	var upper, lower, line strings.Builder
	for i := range all {
		p, back := all[i], all[len(all)-1-i]
		write := func(to *strings.Builder, x, y float64) {
			px, py := b.place(point{x, y}, 0, 1, sparkWidth, sparkHeight-2)
			fmt.Fprintf(to, "%.1f,%.1f ", px, py)
		}
		write(&upper, p.Labelled, p.High)
		write(&lower, back.Labelled, back.Low)
		write(&line, p.Labelled, p.Value)
	}
	_, zero := b.place(point{b.minX, 0}, 0, 1, sparkWidth, sparkHeight-2)
	return markup(fmt.Sprintf(`<svg class="spark" viewBox="0 0 %d %d" aria-hidden="true"><polygon points="%s%s"/><line x1="0" x2="%d" y1="%.1f" y2="%.1f"/><polyline class="curve c0" points="%s"/></svg>`,
		sparkWidth, sparkHeight, upper.String(), strings.TrimSpace(lower.String()), sparkWidth, zero, zero, strings.TrimSpace(line.String())))
}

// loadTrial finds the trial of a version: it runs, or it has ended.
func loadTrial(v *visit) (*trialState, error) {
	model, version := v.query("model"), v.query("version")
	running, err := get[api.TrialList](v, "/api/v1/trials", url.Values{"model": {model}})
	if err != nil {
		return nil, err
	}
	for i := range running.Trials {
		if t := runningTrial(&running.Trials[i]); strconv.Itoa(t.Version) == version {
			return &t, nil
		}
	}
	ended, err := get[api.EndedTrials](v, "/api/v1/trials/ended", url.Values{"model": {model}})
	if err != nil {
		return nil, err
	}
	for i := range ended.Trials {
		if t := endedTrialOf(&ended.Trials[i]); strconv.Itoa(t.Version) == version {
			return &t, nil
		}
	}
	return nil, &api.Problem{Status: http.StatusNotFound, Title: "there is no such trial",
		Detail: "the version has had no trial, or it is one of its model's older ones; a trial that began a moment ago is shown once it has answered an event"}
}

func showTrialWhole(v *visit, t *trialState) Node {
	now := say(" The candidate answers the events that version " + strconv.Itoa(t.Champion) + " answers.")
	if !t.Ended.IsZero() {
		now = list(say(" "+titled(t.sentence())+"."), when(t.Now != "" && string(t.Now) != t.State, say(" The version is now "), badge(t.Now), say(".")))
	}
	return list(lead(badge(t.State), now), t.obstacle(),
		actions(button(versionURL(t.Model, t.Version), "Version "+strconv.Itoa(t.Version)+" of the model"), say(" "),
			when(t.Now == tidemill.VersionTrial || t.Now == tidemill.VersionAwaiting, v.ActAs("Promote without a verdict…", "promote", "model", t.Model, "version", strconv.Itoa(t.Version), "basis", strconv.Itoa(t.Champion), "force", "true"), say(" ")),
			button(trialsURL("recipe", t.Recipe), "Trials of the recipe")),
		v.trialFacts(t), t.evidence(), t.clauses(), t.verdict())
}

func (v *visit) trialFacts(t *trialState) Node {
	all := g.Group{fact("Candidate", modelLink(t.Model, t.Version)), fact("Recipe", anchor(recipeURL(t.Recipe), text(t.Recipe)))}
	if t.Key != t.Recipe {
		all = append(all, fact("Key", keyLink(t.Key)))
	}
	if !t.Evidence {
		return facts(append(all, fact("Ended", v.ago(t.Ended))))
	}
	all = append(all, fact("Against", modelLink(t.Model, t.Champion)), fact("On the stream of scorer", scorerLink(t.Scorer)), fact("Began", v.ago(t.Began), say(", with the last "+short(t.Terms.Last)+" of the stream")))
	if t.Ended.IsZero() {
		all = append(all, fact("Given up", v.ago(t.Began.Add(t.Terms.Until)), say(" without a verdict")))
	} else {
		all = append(all, fact("Ended", v.ago(t.Ended), say(", after "+short(t.Ended.Sub(t.Began)))))
	}
	return facts(append(all, fact("Budget of the recipe", say(t.budget()))))
}

// budget says how sure the lower bound is.
func (t *trialState) budget() string {
	if t.Budget.Trials == 0 {
		return "not known yet"
	}
	return fmt.Sprintf("%s %s in 30 days, %s counted as promoted: the lower bound is wrong with a probability of at most %s %%", count(t.Budget.Trials), one(t.Budget.Trials, "trial", "trials"), count(t.Budget.Promoted), strconv.FormatFloat(100*t.Budget.Level, 'g', 3, 64))
}

// evidence shows the counts of a trial, and draws the lead over the labelled events.
func (t *trialState) evidence() Node {
	if !t.Evidence {
		return nil
	}
	lead := "–"
	if t.Labelled > 0 {
		lead = signedPoints(t.Lead.Value) + " points"
	}
	cards := h.Div(h.Class("cards"),
		card(lead, say("lead, surely between "+signedPoints(t.Lead.Low)+" and "+signedPoints(t.Lead.High))),
		card(count(t.Labelled), say("labelled; a verdict needs "+count(t.Terms.AtLeast))),
		card(count(t.Wins)+" : "+count(t.Losses), say("only the candidate, only the champion is right")),
		card(points(t.disagreement())+" %", say("of "+count(t.Answered)+" answers disagree")),
		card(count(t.Errors), say("events that it could not answer")),
		card(number(t.P99)+" ms", say("p99 of one answer")))
	all := t.course(t.Steps)
	if len(all) == 0 {
		return list(h.H2(say("Evidence")), cards, note(say("No label has come yet, so there is no lead to draw. Without labels only the disagreement, the speed and the errors are known.")))
	}
	lower, value, upper, zero := curve{Name: "surely above this"}, curve{Name: "lead"}, curve{Name: "surely below this"}, curve{Name: "no lead"}
	for _, p := range all {
		lower.Points, value.Points, upper.Points = append(lower.Points, point{p.Labelled, p.Low}), append(value.Points, point{p.Labelled, p.Value}), append(upper.Points, point{p.Labelled, p.High})
	}
	zero.Points = []point{{all[0].Labelled, 0}, {all[len(all)-1].Labelled, 0}}
	return list(h.H2(say("Evidence")), cards, lineChart(graph{Title: "Lead over the labelled events", Sentence: "accuracy of the candidate minus that of the champion, in points", X: "labelled", Curves: []curve{value, lower, upper, zero}}))
}

// clauses shows each clause with its values.
func (t *trialState) clauses() Node {
	if len(t.Clauses) == 0 {
		return nil
	}
	holds, fails := "holds", "does not hold"
	if !t.Ended.IsZero() {
		holds, fails = "held", "did not hold"
	}
	return list(h.H2(say("Clauses")), scroll("narrow", heads("Clause", "Result", "Values"), rows(each(t.Clauses, func(c *tidemill.Clause) Node {
		kind, result := "bad", fails
		if c.Passed {
			kind, result = "good", holds
		}
		return h.Tr(rowName(h.Code(say(titled(c.Text)))), cell(h.Span(h.Class("badge "+kind), say(result))), cell(metricsLine(sortedMetrics(c.Values, nil)), when(c.Note != "", say(" "), quiet(say(titled(c.Note))))))
	}))), when(len(t.Terms.Refuse) > 0 && t.Ended.IsZero(), note(say("It is refused at once if one of these holds: "), each(t.Terms.Refuse, func(c *string) Node { return list(h.Code(say(titled(*c))), say(" ")) }))))
}

// verdict shows what the verdict was computed from, and how to compute it again.
func (t *trialState) verdict() Node {
	j := t.Verdict
	if j == nil {
		return nil
	}
	return list(h.H2(say("The verdict again")), h.P(say("It is computed from the records below and from the files of the candidate. This command reads them again, and reports each part that differs.")), command(t.again()),
		scroll("narrow", heads("Stream", "#Partition", "#From", "#To"), rows(each(j.Read, func(r *tidemill.TrialRange) Node {
			return h.Tr(rowName(streamLink(r.Stream)), figure(say(strconv.Itoa(int(r.Partition)))), figure(say(count(r.From))), figure(say(count(r.To))))
		}))), when(j.Sampled > 1, note(say("There were so many events that one of "+count(j.Sampled)+" counts."))), note(say("Digest "), h.Code(say(word(j.Digest)))))
}
