package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
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

func rescoreCommand() command {
	return command{
		name:    "rescore",
		args:    "SCORER",
		summary: "score a part of a scorer's stream once more, onto another stream",
		about: `Each event of the range gets one answer, by the champion of its key, by the one
before it, or by a version that is named. The answers go to a stream of their own; what
the scorer does, and who reads it, is not touched, and what cannot be scored is counted
and is no dead letter. --from and --to are beginning, end, an offset (of each
partition), a time ago such as -1h or -2d, or a time as in RFC 3339. What was cut off
goes on with --resume.

` + atTheGate,
		examples: []example{
			{"tidemill rescore intents --from -1h --version previous --to-stream what-if", "what the champion before would have said"},
			{"tidemill rescore intents --resume 3k7mzqab2c4d", "go on with one that was cut off"},
		},
		make: func() program { return &rescore{} },
	}
}

type rescore struct {
	gate
	ask    api.RescoreAsk
	output string
}

func (c *rescore) flags(f *flagSet) {
	f.text(&c.ask.From, "from", "", "WHERE", "beginning, OFFSET, -1h or a time")
	f.text(&c.ask.To, "to", "", "WHERE", "the same, or end")
	f.text(&c.ask.Version, "version", "", "VERSION", "champion, previous or a number (champion)")
	f.text(&c.ask.ToStream, "to-stream", "", "STREAM", "where the answers go")
	f.text(&c.ask.Resume, "resume", "", "ID", "go on with one that was begun")
	f.text(&c.output, "output", "o", "FORMAT", "text or json")
	c.gate.flags(f)
}

func (c *rescore) accept(positional []string) error {
	if c.output == "" {
		c.output = "text"
	}
	if err := checkOutput(c.output); err != nil {
		return err
	}
	if err := wants(positional, "SCORER"); err != nil {
		return err
	}
	if c.ask.Resume != "" {
		if c.ask.From+c.ask.To+c.ask.Version+c.ask.ToStream != "" {
			return usagef("--resume goes on as it was begun: leave the other flags out")
		}
		return nil
	}
	switch {
	case c.ask.From == "":
		return usagef("--from is missing: say from where on, such as --from -1h")
	case c.ask.ToStream == "":
		return usagef("--to-stream is missing: name a stream of yours that the answers go to")
	}
	now := time.Now()
	if _, err := parseFrom(c.ask.From, now); err != nil {
		return err
	}
	if c.ask.To != "" {
		if _, err := follow.ParseFrom(c.ask.To, now); err != nil {
			return usagef("--to %v", err)
		}
	}
	return nil
}

func (c *rescore) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := c.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	name, ask := positional[0], c.ask
	all := api.Rescored{ID: ask.Resume, Reasons: map[string]string{}}
	for {
		part, err := g.Rescore(ctx, name, ask)
		if err != nil && all.Records > 0 { // some of it has been done
			return fmt.Errorf("%w; go on with: tidemill rescore %s --resume %s", err, harmless(name), harmless(all.ID))
		}
		if err != nil {
			return err
		}
		add(&all, &part)
		if part.Left == 0 {
			break
		}
		fmt.Fprintf(s.stderr, "%s of %s left (%s)\n", thousands(part.Left), count(int(part.Records), "record"), harmless(part.ID))
		ask = api.RescoreAsk{Resume: part.ID}
	}
	if c.output == "json" {
		return writeIndented(s.stdout, all)
	}
	return tellRescored(s.stdout, &all)
}

// add adds what was done in one request to what was done before.
func add(all, part *api.Rescored) {
	all.ID, all.Records, all.Left = part.ID, part.Records, part.Left
	all.Scored, all.Passed, all.Skipped, all.Unscored = all.Scored+part.Scored, all.Passed+part.Passed, all.Skipped+part.Skipped, all.Unscored+part.Unscored
	for at, why := range part.Reasons {
		if len(all.Reasons) < shownReasons {
			all.Reasons[at] = why
		}
	}
}

const shownReasons = 5

func tellRescored(w io.Writer, all *api.Rescored) error {
	fmt.Fprintf(w, "%s answered", count(int(all.Scored), "event"))
	for _, other := range []struct {
		n    int64
		text string
	}{{all.Skipped, "answered before"}, {all.Passed, "not for this scorer"}, {all.Unscored, "not answered"}} {
		if other.n > 0 {
			fmt.Fprintf(w, ", %s %s", thousands(other.n), other.text)
		}
	}
	fmt.Fprintf(w, "; the answers come from source …/rescore/%s\n", harmless(all.ID))
	for _, at := range slices.Sorted(maps.Keys(all.Reasons)) {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", harmless(at), harmless(all.Reasons[at])); err != nil {
			return err
		}
	}
	return nil
}
