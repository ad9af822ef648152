package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tidemill.dev/api"
)

func scorerPages() []*page {
	return []*page{
		{path: "/ui/scorers", file: "scorers", nav: "/ui/scorers", title: named("Scorers"), regions: []region{
			{"scorers", "scorers", func(v *visit) (any, error) { return get[api.Scorers](v, "/api/v1/scorers", nil) }},
		}},
		{path: "/ui/scorers/{scorer}", file: "scorer", nav: "/ui/scorers", title: func(v *visit) string { return "Scorer " + word(v.PathValue("scorer")) },
			post: true, load: loadQuestion, regions: []region{
				{"scorer", "scorers", loadScorer},
				{"history", "scorers", loadScorerHistory},
				{"swaps", "scorers", loadScorer},
				{"settings", "scorers", loadScorer},
			}},
	}
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

func loadScorer(v *visit) (any, error) {
	s, err := askScorer(v)
	if err != nil {
		return nil, err
	}
	shown := scorerShown{ScorerShown: s, State: scorerState(s.Scorer)}
	for name, path := range s.Map {
		shown.Inputs = append(shown.Inputs, scorerInput{name, path, string(s.Defaults[name])})
	}
	slices.SortFunc(shown.Inputs, func(a, b scorerInput) int { return strings.Compare(a.Name, b.Name) })
	return shown, nil
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
func loadScorerHistory(v *visit) (any, error) {
	h, err := askHistory(v, "scorer:"+v.PathValue("scorer"))
	if err != nil || h == nil {
		return []graph(nil), err
	}
	marks := h.swaps()
	return []graph{
		h.graph("Rate", "events a second", "1/s", marks, "rate"),
		h.graph("Lag", "events that are not scored yet", "", marks, "lag"),
		h.graph("Latency", "seconds from reading an event to its answer", "s", marks, "p50", "p99"),
		h.graph("Held", "events that wait for their models", "", marks, "held"),
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
func loadQuestion(v *visit) (any, error) {
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
	media, query := "application/json", url.Values{}
	if isWholeEvent(q.Data) {
		media = "application/cloudevents+json"
	}
	if q.Key != "" {
		query.Set("key", q.Key)
	}
	done, err := decode[api.ScoreDone](v.ask(http.MethodPost, "/api/v1/scorers/"+v.PathValue("scorer")+"/score", query, json.RawMessage(q.Data), "Content-Type", media))
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

// isWholeEvent reports whether a text is an event with its attributes, and not only its data.
func isWholeEvent(text string) bool {
	var e struct {
		SpecVersion string `json:"specversion"`
	}
	return json.Unmarshal([]byte(text), &e) == nil && e.SpecVersion != ""
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

// Command is the question as a command to type.
func (q *question) Command(scorer string) string {
	c := newCommand("score", scorer).flag("key", q.Key)
	c.words = append(c.words, "-d", strings.Join(strings.Fields(q.Data), " "))
	return c.String()
}
