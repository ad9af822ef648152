package dashboard

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
)

func streamPages() []*page {
	return []*page{
		{path: "/ui/streams", nav: "/ui/streams", title: named("Streams"), regions: []region{part("streams", "streams", asked[api.Streams]("/api/v1/streams"), showStreams)},
			main: still(func(v *view) Node { return list(h.H1(say(v.Title)), actions(v.Act("publish")), v.Region("streams")) })},
		{path: "/ui/streams/{stream}", nav: "/ui/streams", title: func(v *visit) string { return "Stream " + word(v.PathValue("stream")) }, main: still(func(v *view) Node {
			return list(h.H1(say(v.Title)), actions(v.Act("publish", "stream", v.PathValue("stream"))), v.Region("stream"), v.Region("history"), v.Region("events"))
		}), regions: []region{
			part("stream", "streams", asked[api.Stream]("/api/v1/streams/{stream}"), showStream),
			part("history", "streams", loadStreamHistory, showHistory),
			part("events", "", loadEvents, showEvents),
		}},
	}
}

// mostGroupsShown is the number of groups in a row of the table of streams.
const mostGroupsShown = 4

func showStreams(_ *visit, all *api.Streams) Node {
	if len(all.Streams) == 0 {
		return empty("There are no streams.")
	}
	return scroll("rows", heads("Stream", "#Events a second", "#Events", "#Size", "#Partitions", "Retention", "Groups and lag"), rows(each(all.Streams, func(s *api.Stream) Node {
		shown := s.Groups[:min(len(s.Groups), mostGroupsShown)]
		return row(s.Name, rowName(streamLink(s.Name)), figure(say(rate(s.Rate))), figure(say(about(s.Estimated)+count(s.Records))), figure(say(size(s.Bytes))), figure(say(strconv.Itoa(len(s.Partitions)))), cell(say(duration(s.RetentionSeconds))),
			cell(each(shown, func(of *api.Group) Node {
				return list(together(text(of.Group), say(" lag "), h.Span(h.Class("num"), say(about(of.Estimated)+count(of.Lag))), when(of.Lost != 0, say(" "), badge("lost"), say(" "+count(of.Lost)))), say(" "))
			}), when(len(s.Groups) > len(shown), quiet(say(fmt.Sprintf("and %d more", len(s.Groups)-len(shown)))))))
	})))
}

// about marks a number that is an estimate.
func about(estimated bool) string {
	if estimated {
		return "about "
	}
	return ""
}

func showStream(_ *visit, s *api.Stream) Node {
	events := "events"
	if s.Estimated {
		events = "events, about"
	}
	groups := nothing(say("No group of this install reads it."))
	if len(s.Groups) > 0 {
		groups = h.Table(h.Class("rows"), heads("Group", "#Lag", "#Lost"), rows(each(s.Groups, func(of *api.Group) Node {
			return row(of.Group, rowName(text(of.Group)), figure(say(about(of.Estimated)+count(of.Lag))), figure(when(of.Lost != 0, badge("lost"), say(" ")), say(count(of.Lost))))
		})))
	}
	return list(h.Div(h.Class("cards"), card(rate(s.Rate), say("events a second")), card(count(s.Records), say(events)), card(size(s.Bytes), say("stored")), card(duration(s.RetentionSeconds), say("retention"))),
		h.H2(say("Groups")), groups,
		details(fmt.Sprintf("%d partitions", len(s.Partitions)), h.Table(h.Class("narrow"), heads("#No.", "#First offset", "#End"), rows(each(s.Partitions, func(p *api.Partition) Node {
			return h.Tr(h.Th(h.Scope("row"), h.Class("num"), say(strconv.Itoa(int(p.Partition)))), figure(say(count(p.Start))), figure(say(count(p.End))))
		})))))
}

// eventRow is an event of a stream with those of its attributes that a table shows.
type eventRow struct {
	api.Tailed
	ID, Source, Type, Subject string
}

// eventList has some events of a stream.
type eventList struct {
	Events []eventRow
	From   string
	Where  string
}

const usualFrom = "-1h"

// loadEvents reads the first events since the start that the form names.
func loadEvents(v *visit) (*eventList, error) {
	q := v.pick("where")
	from := v.query("from")
	if from == "" {
		from = usualFrom
	}
	q.Set("from", from)
	q.Set("follow", "false")
	q.Set("limit", "50")
	status, body, err := v.ask(http.MethodGet, "/api/v1/streams/"+v.PathValue("stream")+"/events", q, nil)
	if err == nil {
		err = problemOf(status, body)
	}
	if err != nil {
		return nil, err
	}
	return &eventList{Events: readEvents(body), From: from, Where: v.query("where")}, nil
}

func showEvents(v *visit, l *eventList) Node {
	name := v.PathValue("stream")
	parts := list(h.H2(say("Events")), filter(streamURL(name), inputOf("From", "from", l.From, "14", "-1h, an offset, beginning"),
		inputOf("Condition", "where", l.Where, "40", "type = 'message' AND subject = 'bot-42'"), submitButton("Show")),
		g.El("tm-tail", h.Data("src", "/api/v1/streams/"+url.PathEscape(name)+"/events"), h.Data("where", l.Where)))
	if len(l.Events) == 0 {
		return list(parts, hint{"No event from there matches.", "To publish one:", "tidemill publish bot-created --subject bot-42"}.node())
	}
	return list(parts, scroll("rows events", heads("Received", "#Partition/offset", "Type", "Subject", "Event"), rows(each(l.Events, func(e *eventRow) Node {
		place, typ := fmt.Sprintf("%d/%d", e.Partition, e.Offset), Node(text(e.Type))
		if e.Error != "" {
			typ = list(badge("failed"), say(" "+word(e.Error)))
		}
		var whole Node
		if len(e.Event) > 0 {
			whole = h.Details(h.Summary(text(e.ID)), h.Pre(say(indented(e.Event))), h.P(eventLink(e.Source, e.ID), say(" "), quiet(say("causes and effects"))))
		}
		return row(place, cell(v.ago(e.Received)), figure(say(place)), cell(typ), cell(keyLink(e.Subject)), cell(whole))
	}))), note(say(fmt.Sprintf("The first %d events from there.", len(l.Events)))))
}

// readEvents reads the events of a tail's text.
func readEvents(body []byte) (all []eventRow) {
	s := bufio.NewScanner(bytes.NewReader(body))
	s.Buffer(nil, maxAnswer)
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		var row eventRow
		if !ok || json.Unmarshal([]byte(data), &row.Tailed) != nil || row.Event == nil && row.Error == "" {
			continue
		}
		var e struct{ ID, Source, Type, Subject string }
		_ = json.Unmarshal(row.Event, &e) // an unreadable record has no attributes
		row.ID, row.Source, row.Type, row.Subject = e.ID, e.Source, e.Type, e.Subject
		all = append(all, row)
	}
	return all
}

// answered is an answer of a scorer, with its truth if that is known.
type answered struct {
	At            time.Time
	Scorer, Place string
	Model         string
	Version       string
	Label         string
	Score         *float64
	Labelled      bool // whether the scorer has labels
	Truth         *tidemill.OutcomeData
}

// answerList has the newest answers of a scorer, or of the models of a key.
type answerList struct {
	Answers []answered
	Rate    curve    // answers in each minute
	Since   string   // begin, as the form has it
	Missed  []string // parts that could not be read, or are not whole
}

const (
	answersFrom = "-15m"
	mostAnswers = 20
	mostTailed  = 1000 // events of one stream that a list of answers is made from
)

// loadScorerAnswers returns the newest answers of the page's scorer.
func loadScorerAnswers(v *visit) (*answerList, error) {
	s, err := askScorer(v)
	if err != nil {
		return nil, err
	}
	l := &answerList{Since: cmp.Or(v.query("answers"), answersFrom)}
	l.add(v, &s.Scorer, "")
	return l.newest(), nil
}

// loadKeyAnswers returns the newest answers of the models of the page's key.
func loadKeyAnswers(v *visit) (*answerList, error) {
	models, err := modelsOfKey(v)
	if err != nil {
		return nil, err
	}
	scorers, err := get[api.Scorers](v, "/api/v1/scorers", nil)
	if err != nil {
		return nil, err
	}
	l := &answerList{Since: cmp.Or(v.query("answers"), answersFrom)}
	for i := range scorers.Scorers {
		for j := range models {
			if s := &scorers.Scorers[i]; servesRecipe(s, &models[j]) {
				l.add(v, s, models[j].Name)
			}
		}
	}
	return l.newest(), nil
}

// servesRecipe reports whether a scorer's pattern can be that of a model: both have the same text before the key.
func servesRecipe(s *api.Scorer, m *api.ModelShown) bool {
	before, _, _ := strings.Cut(s.Model, "{")
	return strings.HasPrefix(m.Name, before)
}

// add adds the answers of a scorer by one model; an empty name is for all models.
func (l *answerList) add(v *visit, s *api.Scorer, model string) {
	of := ""
	if model != "" {
		of = " AND model = '" + strings.ReplaceAll(model, "'", `\'`) + "'"
	}
	answers, err := l.tail(v, s.To, "type = '"+tidemill.TypeScored+"'"+of)
	truths := map[string]*tidemill.OutcomeData{}
	if err == nil && s.Labels != nil {
		var outcomes []eventRow
		outcomes, err = l.tail(v, tidemill.StreamOutcomes, "scorer = '"+s.Name+"'"+of)
		for i := range outcomes {
			var e struct{ Data tidemill.OutcomeData }
			if json.Unmarshal(outcomes[i].Event, &e) == nil && e.Data.Place != "" {
				truths[e.Data.Place] = &e.Data // a later one corrects an earlier one
			}
		}
	}
	if err != nil && !isNotFound(err) {
		l.Missed = append(l.Missed, "scorer "+word(s.Name)+": "+err.Error())
	}
	for i := range answers {
		var e struct {
			ID, Model, ModelVersion string
			Data                    struct {
				Label string
				Score *float64
			}
		}
		if json.Unmarshal(answers[i].Event, &e) == nil {
			l.Answers = append(l.Answers, answered{answers[i].Received, s.Name, e.ID, e.Model, e.ModelVersion, e.Data.Label, e.Data.Score, s.Labels != nil, truths[e.ID]})
		}
	}
}

// tail reads events of a stream that a condition selects.
func (l *answerList) tail(v *visit, stream, where string) ([]eventRow, error) {
	status, body, err := v.ask(http.MethodGet, "/api/v1/streams/"+stream+"/events", url.Values{"from": {l.Since}, "follow": {"false"}, "limit": {strconv.Itoa(mostTailed)}, "where": {where}}, nil)
	all := readEvents(body)
	if len(all) == mostTailed {
		l.Missed = append(l.Missed, "stream "+word(stream)+": only the first "+count(mostTailed)+" events since then were read; give a later time")
	}
	return all, errors.Join(err, problemOf(status, body))
}

func (l *answerList) newest() *answerList {
	slices.SortStableFunc(l.Answers, func(a, b answered) int { return b.At.Compare(a.At) })
	perMinute := map[int64]float64{}
	for i := range l.Answers {
		perMinute[l.Answers[i].At.Unix()/60]++
	}
	if n := len(l.Answers); n > 0 {
		for minute := l.Answers[n-1].At.Unix() / 60; minute <= l.Answers[0].At.Unix()/60; minute++ {
			l.Rate.Points = append(l.Rate.Points, point{float64(60 * minute), perMinute[minute]})
		}
	}
	l.Rate.Name = "answers a minute"
	l.Answers = l.Answers[:min(len(l.Answers), mostAnswers)]
	return l
}

func showAnswers(v *visit, l *answerList) Node {
	shows := g.Group{inputOf("Since", "answers", l.Since, "10", "-1h or a time"), submitButton("Show")}
	if key := v.Q("key"); key != "" {
		shows = append(shows, hidden("key", key))
	}
	parts := list(h.H2(h.ID("answers"), say("Answers")), filter(v.URL.Path, shows), each(l.Missed, func(text *string) Node { return h.P(h.Class("problem"), say(titled(*text))) }))
	if len(l.Answers) == 0 {
		return list(parts, nothing(say("There are none since then.")))
	}
	return list(parts, when(len(l.Rate.Points) > 1, lineChart(graph{Title: "Answers a minute", Sentence: "since " + word(l.Since), Times: true, Curves: []curve{l.Rate}})), scroll("rows", heads("Answered", "Event", "Version", "Answer", "Truth", "Act"), rows(each(l.Answers, func(a *answered) Node {
		act := quiet(say("the scorer has no labels"))
		if a.Labelled {
			act = v.ActAs(a.actTitle(), "label", "scorer", a.Scorer, "event", a.Place)
		}
		return row(a.Scorer+" "+titled(a.Place), cell(v.ago(a.At)), rowName(text(a.Place)), cell(a.version()), cell(a.answer()), cell(a.truth()), acts(act))
	}))))
}

func (a *answered) actTitle() string {
	if a.Truth != nil {
		return "Correct…"
	}
	return "Give its truth…"
}

func (a *answered) version() Node {
	n, _ := strconv.Atoi(a.Version)
	return modelLink(a.Model, n)
}

func (a *answered) answer() Node {
	if a.Label == "" {
		return quiet(say("no label"))
	}
	return list(h.Strong(text(a.Label)), when(a.Score != nil, say(" "), quiet(say(number(valueOf(a.Score))))))
}

func valueOf(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

// truth shows whether an answer was right, and where its truth comes from.
func (a *answered) truth() Node {
	o := a.Truth
	if o == nil {
		return dash()
	}
	kind, result := "bad", "wrong"
	if o.Right() {
		kind, result = "good", "right"
	}
	return list(h.Span(h.Class("badge "+kind), say(result)), say(" "), text(o.Truth), say(" "), quiet(say(basisWord(o.Basis))))
}

// basisWord says where a truth comes from.
func basisWord(b tidemill.OutcomeBasis) string {
	switch b {
	case tidemill.OutcomeLabelled:
		return "by a label"
	case tidemill.OutcomeSaid:
		return "by a person"
	case tidemill.OutcomeAssumed:
		return "no label came"
	}
	return word(b)
}
