package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/api"
)

func scoreCommand() command {
	return command{
		name:    "score",
		args:    "SCORER",
		summary: "ask a scorer's champion about one event, and publish nothing",
		about: `The data is read as the scorer reads that of an event. Whose champion answers says
--key, or else the data, where the scorer's key stands there. The first answer of a
gateway takes as long as it takes to read the champions and the model.

` + atTheGate,
		examples: []example{
			{`tidemill score intents --key bot-42 -d '{"text":"hi"}'`, "which intent that is"},
			{`tidemill score intents --key bot-42 -d @event.json -o json`, "for a script"},
		},
		make: func() program { return &scoreAsk{publish: publish{contentType: jsonType}, output: "text"} },
	}
}

type scoreAsk struct {
	gate
	publish publish // reads the data as it does
	key     string
	output  string
}

func (a *scoreAsk) flags(f *flagSet) {
	f.each("d", "JSON", "the event's data: JSON, @FILE or @- for standard input", a.publish.takeData)
	f.text(&a.key, "key", "k", "KEY", "whose champion answers")
	f.text(&a.output, "output", "o", "FORMAT", "text or json")
	a.gate.flags(f)
}

func (a *scoreAsk) accept(positional []string) error {
	if err := checkOutput(a.output); err != nil {
		return err
	}
	if err := wants(positional, "SCORER"); err != nil {
		return err
	}
	if !a.publish.given {
		return usagef("-d is missing: give the event's data, such as -d '{\"text\":\"hi\"}'")
	}
	return nil
}

func (a *scoreAsk) run(ctx context.Context, s *session, positional []string) error {
	data, err := a.publish.readData(ctx, s.stdin)
	if err != nil {
		return err
	}
	g, done, err := a.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	answer, err := g.Score(ctx, positional[0], a.key, data)
	switch {
	case err != nil:
		return err
	case a.output == "json":
		return writeIndented(s.stdout, answer)
	}
	return showScore(s.stdout, &answer)
}

// mostScores is how many labels an answer names.
const mostScores = 10

// showScore prints the label, and the others by their scores.
func showScore(w io.Writer, a *api.ScoreDone) error {
	said := strings.TrimSpace(a.Label + " " + scoreText(a.Score))
	if a.Label == "" {
		said = valuesText(a.Values)
	}
	if _, err := fmt.Fprintf(w, "%s  (%s@%d)\n", harmless(said), harmless(a.Model), a.Version); err != nil || len(a.Scores) == 0 {
		return err
	}
	labels := slices.SortedFunc(maps.Keys(a.Scores), func(x, y string) int {
		if a.Scores[x] != a.Scores[y] {
			return cmpDown(a.Scores[x], a.Scores[y])
		}
		return strings.Compare(x, y)
	})
	rows := [][]string{}
	for _, l := range labels[:min(len(labels), mostScores)] {
		rows = append(rows, []string{"  " + harmless(l), scoreText(a.Scores[l])})
	}
	if err := columns(w, rows); err != nil {
		return err
	}
	if more := len(labels) - mostScores; more > 0 {
		_, err := fmt.Fprintf(w, "  and %s; -o json has all\n", count(more, "label"))
		return err
	}
	return nil
}

func cmpDown(a, b float64) int {
	if a > b {
		return -1
	}
	return 1
}

func scoreText(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

// valuesText are the first values of a model that is no classifier.
func valuesText(values []float64) string {
	texts := make([]string, 0, mostScores+1)
	for _, v := range values[:min(len(values), mostScores)] {
		texts = append(texts, strconv.FormatFloat(v, 'g', 6, 64))
	}
	if len(values) > mostScores {
		texts = append(texts, "...")
	}
	return strings.Join(texts, ", ")
}
