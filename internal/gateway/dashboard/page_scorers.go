package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func scorerPages() []*page {
	return []*page{
		{path: "/ui/scorers", nav: "/ui/scorers", title: named("Scorers"), regions: []region{part("scorers", "scorers", asked[api.Scorers]("/api/v1/scorers"), showScorers)},
			main: still(func(v *view) Node { return list(h.H1(say(v.Title)), v.Region("scorers")) })},
		{path: "/ui/scorers/{scorer}", nav: "/ui/scorers", title: func(v *visit) string { return "Scorer " + word(v.PathValue("scorer")) },
			post: true, main: loaded(loadQuestion, showScorerPage), regions: []region{
				part("scorer", "scorers", loadScorer, showScorer),
				part("history", "scorers", loadScorerHistory, showHistory),
				part("swaps", "scorers", loadScorer, showSwaps),
				part("answers", "", loadScorerAnswers, showAnswers),
				part("settings", "scorers", loadScorer, showSettings),
			}},
	}
}

func showScorers(_ *visit, all *api.Scorers) Node {
	if len(all.Scorers) == 0 {
		return empty("The config has no scorers. A scorer answers the events of a stream with the champion of their key.")
	}
	sentence := "The number of processes is unknown: Redis does not answer, or there is none."
	if all.Processes != nil {
		sentence = count(*all.Processes) + " " + one(*all.Processes, "process scores", "processes score") + "."
	}
	return list(lead(say(sentence)), scroll("rows", heads("Scorer", "State", "From", "To", "Model", "#Events a second", "#Lag", "#p50", "#p99", "#Cache hits", "#Waiting", "#Models", "#Processes"),
		rows(each(all.Scorers, func(s *api.Scorer) Node {
			numbers := numbersOf(s.Numbers)
			return row(titled(s.Name), rowName(scorerLink(s.Name)), cell(badge(scorerState(*s)), when(s.LastError != "", say(" "), quiet(say(word(s.LastError))))), cell(streamLink(s.From)), cell(streamLink(s.To)), cell(text(s.Model)),
				figure(say(numbers.rate)), figure(say(count(s.Lag))), figure(say(numbers.p50)), figure(say(numbers.p99)), figure(say(numbers.hits)), figure(say(numbers.held)), figure(say(numbers.models)), figure(say(count(s.Processes))))
		}))))
}

// scorerWords are the numbers of a scorer in words.
type scorerWords struct{ rate, p50, p99, hits, held, models string }

// numbersOf returns ? for numbers that are not known, and – for those that need a scored event.
func numbersOf(n *api.ScorerNumbers) scorerWords {
	if n == nil {
		return scorerWords{"?", "?", "?", "?", "?", "?"}
	}
	w := scorerWords{rate(n.Rate), "–", "–", "–", count(n.Held), count(n.Models)}
	if n.Scored > 0 {
		w.p50, w.p99, w.hits = duration(n.P50Seconds), duration(n.P99Seconds), percent(n.HitRate, 1)
	}
	return w
}

func showScorerPage(v *view, q *question) Node {
	return list(h.H1(say(v.Title)), v.Region("scorer"), v.Region("history"),
		h.Div(h.Class("side"), h.Div(v.Region("swaps")),
			h.Section(h.Aria("label", "Ask it by hand"), h.H2(h.ID("ask"), say("Ask it by hand")), note(say("The champion answers for this event alone. Nothing is published.")), q.form(v), q.result())),
		v.Region("answers"), v.Region("settings"))
}

func (q *question) form(v *view) Node {
	return h.Form(h.Class("question"), h.Method("post"), h.Action(scorerURL(v.PathValue("scorer"))+"#ask"),
		when(!q.Keyless, inputOf("Key", "key", q.Key, "", "bot-42")),
		h.Label(say("Data of the event, or the whole event, as JSON "), h.Textarea(h.Name("data"), h.Rows("6"), g.Attr("spellcheck", "false"), say(q.Data))),
		h.Div(h.Button(h.Class("primary"), say("Ask"))))
}

// result shows the answer, or the problem with the question.
func (q *question) result() Node {
	if q.Problem != nil {
		return showProblem(q.Problem)
	}
	a := q.Answer
	if a == nil {
		return nil
	}
	var answer g.Group
	switch {
	case a.Label != "":
		answer = g.Group{h.Strong(text(a.Label)), say(" " + number(a.Score))}
	case len(a.Values) > 0:
		answer = g.Group{h.Strong(each(a.Values, func(x *float64) Node { return say(number(*x) + " ") }))}
	}
	return h.Div(h.Class("problem result"), h.Role("status"), h.P(answer, say(" "), quiet(say("by")), say(" "), modelLink(a.Model, a.Version)),
		when(len(q.Scores) > 0, h.Table(h.Class("stages"), rows(each(q.Scores, func(m *metric) Node {
			return h.Tr(rowName(text(m.Name)), figure(say(number(m.Value))), cell(bar(m.Name, m.Value, 1)))
		})))), command(q.Command(a.Scorer)))
}

func showScorer(v *visit, s *scorerShown) Node {
	sentence := list(say("Scores "), streamLink(s.From), say(" with "), text(s.Model), say(", and writes to "), streamLink(s.To), say("."))
	switch s.State {
	case "stopped":
		sentence = say(count(s.Lag) + " events wait, and no process scores them.")
	case "unknown":
		sentence = say("Redis does not answer, or there is none.")
	}
	parts := g.Group{lead(badge(s.State), say(" "), sentence),
		actions(v.Act("rescore", "scorer", s.Name), say(" "), button(streamURL(s.From), "Events of "+word(s.From)), say(" "), button(streamURL(s.To), "Answers on "+word(s.To)))}
	if s.LastError != "" {
		parts = append(parts, h.Div(h.Class("problem"), h.Role("alert"), h.P(h.Strong(say("Last error")), say(" "), v.ago(s.LastErrorAt)), h.P(say(titled(s.LastError)))))
	}
	lag := card(count(s.Lag), say("events of lag"))
	if s.Numbers == nil {
		return append(parts, h.Div(h.Class("cards"), lag))
	}
	n, processes := numbersOf(s.Numbers), count(s.Processes)
	latency := func(seconds float64) string {
		if seconds == 0 {
			return "–"
		}
		return duration(seconds)
	}
	return append(parts, h.Div(h.Class("cards"), card(n.rate, say("events a second")), lag,
		card(latency(s.Numbers.P50Seconds), say("p50, p99 "+latency(s.Numbers.P99Seconds))), card(n.hits, say("of models were in memory")),
		card(n.held, say("events wait for their models")), card(n.models, say("models in use, by "+processes+" "+oneOf(processes, "process", "processes")))))
}

func showSwaps(v *visit, s *scorerShown) Node {
	if len(s.Swaps) == 0 {
		return list(h.H2(say("Swaps of models")), nothing(say("No swap is known. A swap is listed when a new champion scores its first event.")))
	}
	return list(h.H2(say("Swaps of models")), scroll("rows", heads("Model", "When", "#Before", "First event of the version", "Act"), rows(each(s.Swaps, func(w *api.ScorerSwap) Node {
		before := "–"
		if w.Before != 0 {
			before = strconv.Itoa(w.Before)
		}
		return row(fmt.Sprintf("%s %d %d", titled(w.Model), w.Version, w.Partition), rowName(modelLink(w.Model, w.Version)), cell(v.ago(w.At)), figure(say(before)),
			cell(streamLink(w.Stream), say(fmt.Sprintf(" %d/%d", w.Partition, w.Offset))), cell(v.Act("rollback", "model", w.Model)))
	}))))
}

func showSettings(v *visit, s *scorerShown) Node {
	types := say("every type")
	if len(s.Types) > 0 {
		types = each(s.Types, func(name *string) Node { return list(text(*name), say(" ")) })
	}
	all := g.Group{fact("Key", text(s.Key)), fact("Types", types), fact("Delivery", text(s.Delivery)), fact("Engine", text(s.Engine)),
		fact("Without a model", text(s.NoModel), when(s.Instead != "", say(" "), text(s.Instead))),
		each(s.Inputs, func(in *scorerInput) Node {
			return h.Div(h.Dt(say("Input "), text(in.Name)), h.Dd(h.Code(text(in.Path)), when(in.Default != "", say(", or "), text(in.Default))))
		})}
	if n := s.Numbers; n != nil {
		all = append(all, fact("Since the start of its processes", say(fmt.Sprintf("%s scored, %s passed on, %s dropped, %s dead letters, %s skipped, %s aborted transactions",
			count(n.Scored), count(n.Passed), count(n.Dropped), count(n.DeadLettered), count(n.Skipped), count(n.Aborted)))))
	}
	return list(h.H2(say("Settings")), facts(all), when(len(s.Running) > 0, h.H2(say("Processes")), v.scorerProcesses(s.Running)))
}

func (v *visit) scorerProcesses(all []api.ScorerProcess) Node {
	return scroll("rows", heads("Process", "Host", "Began", "#Events a second", "#Lag", "#p99", "#Models loaded", "Memory of models", "#Evicted"), rows(each(all, func(p *api.ScorerProcess) Node {
		n := numbersOf(&p.Numbers)
		return row(titled(p.ID), rowName(text(p.ID)), cell(text(p.Host)), cell(v.ago(p.Began)), figure(say(n.rate)), figure(say(count(p.Lag))), figure(say(n.p99)), figure(say(count(p.Loaded))),
			cell(bar("memory of models", float64(p.Bytes), float64(p.Budget)), say(" "+size(p.Bytes)+" of "+size(p.Budget))), figure(say(count(p.Evicted))))
	})))
}

func askScorer(v *visit) (api.ScorerShown, error) {
	return get[api.ScorerShown](v, "/api/v1/scorers/"+v.PathValue("scorer"), nil)
}

// scorerShown is a scorer with what its page computes.
type scorerShown struct {
	api.ScorerShown
	State  string
	Inputs []scorerInput
}

// scorerInput is an input of a scorer's model.
type scorerInput struct{ Name, Path, Default string }

func loadScorer(v *visit) (*scorerShown, error) {
	s, err := askScorer(v)
	if err != nil {
		return nil, err
	}
	shown := scorerShown{ScorerShown: s, State: scorerState(s.Scorer)}
	for name, path := range s.Map {
		shown.Inputs = append(shown.Inputs, scorerInput{name, path, string(s.Defaults[name])})
	}
	slices.SortFunc(shown.Inputs, func(a, b scorerInput) int { return strings.Compare(a.Name, b.Name) })
	return &shown, nil
}

// scorerState says in one word whether a scorer scores.
func scorerState(s api.Scorer) string {
	switch {
	case s.Processes == nil:
		return "unknown"
	case *s.Processes == 0 && s.Lag != nil && *s.Lag > 0:
		return "stopped"
	case *s.Processes == 0:
		return "no process"
	case s.LastError != "":
		return "degraded"
	}
	return "live"
}

// loadScorerHistory draws the series of a scorer's history, in the order of the page.
func loadScorerHistory(v *visit) ([]graph, error) {
	h, err := askHistory(v, "scorer:"+v.PathValue("scorer"))
	if err != nil || h == nil {
		return nil, err
	}
	marks := h.swaps()
	return []graph{
		h.graph("Rate", "events a second", "1/s", marks, "rate"),
		h.graph("Lag", "events that are not scored yet", "", marks, "lag"),
		h.graph("Latency", "seconds from reading an event to its answer", "s", marks, "p50", "p99"),
		h.graph("Waiting", "events that wait for their models", "", marks, "held"),
	}, nil
}

// question is one event that a person asks a scorer by hand, and the answer.
type question struct {
	Data, Key string
	Keyless   bool // the scorer has one model for all keys
	Answer    *api.ScoreDone
	Scores    []metric
	Problem   *api.Problem
}

// loadQuestion makes the form. If it was sent, it asks the scorer. A problem stays next to the form,
// so that the person can mend the event.
func loadQuestion(v *visit) (*question, error) {
	s, err := askScorer(v)
	if err != nil {
		return nil, err
	}
	q := &question{Data: v.PostFormValue("data"), Key: v.PostFormValue("key"), Keyless: s.Key == "none"}
	if v.Method != http.MethodPost {
		q.Data = exampleEvent(s.Map)
		return q, nil
	}
	if err := q.ask(v); err != nil && !errors.As(err, &q.Problem) {
		return nil, err
	}
	return q, nil
}

func (q *question) ask(v *visit) error {
	if !json.Valid([]byte(q.Data)) {
		return &api.Problem{Status: http.StatusBadRequest, Title: "the event is not JSON", Detail: "write the event's data as JSON, such as {\"text\": \"where is my parcel\"}"}
	}
	query := url.Values{}
	if q.Key != "" {
		query.Set("key", q.Key)
	}
	done, err := decode[api.ScoreDone](v.ask(http.MethodPost, "/api/v1/scorers/"+v.PathValue("scorer")+"/score", query, json.RawMessage(q.Data)))
	if err != nil {
		return err
	}
	q.Answer, q.Scores = &done, sortedMetrics(done.Scores, nil)
	slices.SortStableFunc(q.Scores, func(a, b metric) int { // the likeliest first
		switch {
		case a.Value > b.Value:
			return -1
		case a.Value < b.Value:
			return 1
		}
		return 0
	})
	return nil
}

// exampleEvent makes data that has every input of a scorer.
func exampleEvent(inputs map[string]string) string {
	whole := map[string]any{}
	for _, path := range inputs {
		parts := strings.Split(path, ".")
		if len(parts) < 2 || parts[0] != "data" || strings.ContainsAny(path, "[]'\"") {
			continue
		}
		at := whole
		for _, part := range parts[1 : len(parts)-1] {
			inner, ok := at[part].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[part] = inner
			}
			at = inner
		}
		at[parts[len(parts)-1]] = nil
	}
	text, _ := json.MarshalIndent(whole, "", "  ") // maps of texts can be encoded
	return string(text)
}

// Command is the question as a command to type, on one line. No text of JSON has a line break.
func (q *question) Command(scorer string) string {
	c := newCommand("score", scorer).flag("key", q.Key)
	var data []string
	for line := range strings.Lines(q.Data) {
		data = append(data, strings.TrimSpace(line))
	}
	c.words = append(c.words, "-d", strings.Join(data, " "))
	return c.String()
}
