package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func scorersCommand() command.Command {
	return command.Command{
		Name:    "scorers",
		Daily:   true,
		Lists:   true,
		Watched: true,
		Args:    "[NAME]",
		Summary: "list the scorers: rate, lag, latency; with NAME, its swaps and processes",
		About: `RATE and the latencies are recent values of the slowest process. A latency is the time
from an event in the log to its score in the log. LAG is the number of events that are
not scored yet, WAITING the number that wait for their models, HITS the share of uses
with the model in memory. Unknown values are shown as ?.`,
		Examples: []command.Example{
			{"tidemill scorers", "a table"},
			{"tidemill scorers intents", "the swaps and processes of one scorer"},
			{"tidemill scorers -o json", "for a script"},
		},
		Make: func() command.Program { return &request{json: true, do: listScorers} },
	}
}

// listScorers lists the scorers, or shows the one that the argument names.
func listScorers(ctx context.Context, c *call) error {
	if len(c.positional) == 1 {
		return showing((*client.Gateway).Scorer, func(w io.Writer, s *api.ScorerShown) error { return showScorer(w, s, time.Now()) }).do(ctx, c)
	}
	return listing(func(ctx context.Context, g *client.Gateway) (api.Scorers, error) { return g.Scorers(ctx) }, scorerTable).do(ctx, c)
}

func scorerTable(all *api.Scorers) table {
	return table{none: "There are no scorers; write one under scorers: in the config.", right: true, advice: func(w io.Writer) { adviseOnScorers(w, all) },
		rows: rowsOf(all.Scorers, func(s *api.Scorer) []string {
			row := append([]string{show.Harmless(s.Name)}, lagAmong(s, numbersText(s.Numbers))...)
			return append(row, show.Harmless(s.From+" → "+s.To))
		}, "SCORER", "RATE", "LAG", "P50", "P99", "WAITING", "SCORED", "DEAD", "MODELS", "HITS", "FROM")}
}

// numbersText returns the columns of a scorer, without its lag.
func numbersText(n *api.ScorerNumbers) []string {
	if n == nil {
		return slices.Repeat([]string{unknown}, 8)
	}
	return []string{rateText(n.Rate), latency(n.P50Seconds), latency(n.P99Seconds), show.Thousands(n.Held), show.Thousands(int64(n.Scored)),
		show.Thousands(int64(n.DeadLettered)), show.Thousands(int64(n.Models)), percent(n.HitRate)}
}

// lagAmong inserts the lag after the rate. The lag comes from Kafka, so it may be known if the
// other numbers are not.
func lagAmong(s *api.Scorer, texts []string) []string {
	lag := unknown
	if s.Lag != nil {
		lag = show.Thousands(*s.Lag)
	}
	return slices.Insert(texts, 1, lag)
}

func rateText(rate float64) string {
	if rate > 0 && rate < 10 {
		return fmt.Sprintf("%.1f/s", rate)
	}
	return show.Thousands(int64(rate)) + "/s"
}

func latency(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return show.Milliseconds(time.Duration(seconds * float64(time.Second)))
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

// adviseOnScorers prints problems, and suggests the next command.
func adviseOnScorers(w io.Writer, all *api.Scorers) {
	switch {
	case all.Processes == nil:
		fmt.Fprintln(w, "\nThe state of scoring is unknown: the gateway has no Redis, or Redis does not answer. Scoring itself does not need it.")
	case *all.Processes == 0:
		fmt.Fprintln(w, "\nNo scorer runs. Events wait on their streams; tidemill up or tidemill serve scorer NAME starts one.")
	default:
		var idle []string
		for i := range all.Scorers {
			if s := &all.Scorers[i]; s.Processes != nil && *s.Processes == 0 {
				idle = append(idle, show.Harmless(s.Name))
			}
		}
		if len(idle) > 0 {
			fmt.Fprintf(w, "\nNo process runs %s: tidemill serve scorer %s starts one.\n", strings.Join(idle, ", "), idle[0])
		}
	}
}

// mostSwaps is the largest number of swaps, and of models among them, that are shown.
const mostSwaps = 20

// showScorer prints all that is known of a scorer.
func showScorer(w io.Writer, s *api.ScorerShown, now time.Time) error {
	line, flush := labelledLines(w)
	say := func(what, format string, args ...any) { line(what, fmt.Sprintf(format, args...)) }
	say("scorer", "%s", s.Name)
	say("scores", "%s", scoredText(&s.Scorer))
	say("by", "%s, the key is %s%s", s.Model, s.Key, mapText(&s.Scorer))
	say("no model", "%s", noModelText(&s.Scorer))
	say("delivery", "%s, engine %s", s.Delivery, s.Engine)
	if s.Lag != nil {
		say("lag", "%s", show.Count(int(*s.Lag), "event"))
	}
	if n := s.Numbers; n != nil {
		say("now", "%s, p50 %s, p99 %s, %s waiting", rateText(n.Rate), latency(n.P50Seconds), latency(n.P99Seconds), show.Thousands(n.Held))
		say("so far", "%s scored, %s passed on, %s dropped, %s became dead letters; after takeovers %s skipped, %s aborted", show.Count(int(n.Scored), "event"),
			show.Thousands(int64(n.Passed)), show.Thousands(int64(n.Dropped)), show.Thousands(int64(n.DeadLettered)), show.Thousands(int64(n.Skipped)), show.Count(int(n.Aborted), "transaction"))
		say("models", "%s in use, in memory at %s of uses", show.Thousands(int64(n.Models)), percent(n.HitRate))
	} else {
		say("now", "unknown: no process has reported recently")
	}
	if s.LastError != "" && s.LastErrorAt != nil {
		say("last error", "%s, %s ago", s.LastError, age(now.Sub(*s.LastErrorAt)))
	}
	if err := flush(); err != nil {
		return err
	}
	for _, part := range []func(io.Writer, *api.ScorerShown, time.Time) error{showVersions, showSwaps, showProcesses} {
		if err := part(w, s, now); err != nil {
			return err
		}
	}
	return nil
}

func scoredText(s *api.Scorer) string {
	types := "every event"
	if len(s.Types) > 0 {
		types = strings.Join(s.Types, ", ")
	}
	return types + " of " + s.From + ", to " + s.To
}

func mapText(s *api.Scorer) string {
	var b strings.Builder
	for _, input := range slices.Sorted(maps.Keys(s.Map)) {
		b.WriteString(", " + input + " from " + s.Map[input])
		if d := s.Defaults[input]; d != nil {
			b.WriteString(" (default " + show.Cut(string(d), 40) + ")")
		}
	}
	return b.String()
}

func noModelText(s *api.Scorer) string {
	switch s.NoModel {
	case "model":
		return s.Instead + " answers"
	case "pass":
		return "the event goes to " + s.To + " unchanged"
	case "drop":
		return "the event is dropped"
	}
	return "the event becomes a dead letter"
}

func showVersions(w io.Writer, s *api.ScorerShown, now time.Time) error {
	return showBlock(w, "\nVersions that answer:\n", rowsOf(s.Versions[:min(len(s.Versions), mostSwaps)], func(v *api.ScorerVersion) []string {
		return []string{show.Harmless(v.Model), fmt.Sprint(v.Version), age(now.Sub(v.Since)) + " ago"}
	}, "MODEL", "VERSION", "SINCE"), len(s.Versions)-mostSwaps)
}

func showSwaps(w io.Writer, s *api.ScorerShown, now time.Time) error {
	return showBlock(w, "\nRecent swaps:\n", rowsOf(s.Swaps[:min(len(s.Swaps), mostSwaps)], func(x *api.ScorerSwap) []string {
		versions := fmt.Sprint(x.Version)
		if x.Before > 0 {
			versions = fmt.Sprintf("%d → %d", x.Before, x.Version)
		}
		return []string{age(now.Sub(x.At)) + " ago", show.Harmless(x.Model), versions, fmt.Sprintf("%s/%d/%d", show.Harmless(x.Stream), x.Partition, x.Offset)}
	}, "SWAP", "MODEL", "VERSION", "FIRST EVENT"), len(s.Swaps)-mostSwaps)
}

func showProcesses(w io.Writer, s *api.ScorerShown, now time.Time) error {
	return showBlock(w, "\n", rowsOf(s.Running, func(r *api.ScorerProcess) []string {
		return []string{show.Harmless(r.Host + "/" + r.ID), rateText(r.Numbers.Rate), show.Thousands(r.Lag), latency(r.Numbers.P50Seconds),
			latency(r.Numbers.P99Seconds), show.Thousands(int64(r.Numbers.Scored)), show.Size(r.Bytes) + " of " + show.Size(r.Budget), percent(r.Numbers.HitRate), age(now.Sub(r.Began)) + " ago"}
	}, "PROCESS", "RATE", "LAG", "P50", "P99", "SCORED", "MEMORY", "HITS", "SINCE"), 0)
}

// showBlock prints a table below a title, if it has rows. More is the number of rows that are not shown.
func showBlock(w io.Writer, title string, rows [][]string, more int) error {
	if len(rows) == 1 {
		return nil
	}
	if _, err := io.WriteString(w, title); err != nil {
		return err
	}
	err := show.Columns(w, rows)
	if err == nil && more > 0 {
		_, err = fmt.Fprintf(w, "… and %s more; -o json has all\n", show.Thousands(int64(more)))
	}
	return err
}

func scoreCommand() command.Command {
	return command.Command{
		Name:    "scorers score",
		Short:   "score",
		Args:    "SCORER",
		Summary: "ask a scorer's champion about one event, and publish nothing",
		About: `The data is read like the data of an event. A CloudEvent with its specversion is read as
that event. --key selects the champion, or the field of the data that is the scorer's key.
The first answer of a gateway is slower, because it reads the champions and the model.`,
		Examples: []command.Example{
			{`tidemill score intents --key bot-42 -d '{"text":"hi"}'`, "score one message"},
			{`tidemill score intents --key bot-42 -d @event.json -o json`, "for a script"},
		},
		Make: func() command.Program {
			a := &scoreAsk{publish: publish{contentType: jsonType}}
			return &request{json: true, flags: a.flags, accept: a.accept, do: a.do}
		},
	}
}

type scoreAsk struct {
	publish publish // reads the data of -d
	key     string
}

func (a *scoreAsk) flags(f *command.FlagSet) {
	f.Each("d", "JSON", "the event's data: JSON, @FILE or @- for standard input", a.publish.takeData)
	f.Text(&a.key, "key", "k", "KEY", "key whose champion answers")
}

func (a *scoreAsk) accept([]string) error {
	if !a.publish.given {
		return command.Usagef("-d is missing: give the event's data, such as -d '{\"text\":\"hi\"}'")
	}
	return nil
}

func (a *scoreAsk) do(ctx context.Context, c *call) error {
	data, err := a.publish.readData(ctx, c.Stdin)
	if err != nil {
		return err
	}
	answer, err := c.g.Score(ctx, c.positional[0], a.key, data)
	switch {
	case err != nil:
		return err
	case c.json:
		return writeIndented(c.Stdout, answer)
	}
	return showScore(c.Stdout, &answer)
}

// mostScores is the largest number of labels that are shown.
const mostScores = 10

// showScore prints the label, and the others by their scores.
func showScore(w io.Writer, a *api.ScoreDone) error {
	if _, err := fmt.Fprintf(w, "%s  (%s@%d)\n", show.Harmless(answerOf(a.Label, a.Score, a.Values)), show.Harmless(a.Model), a.Version); err != nil || len(a.Scores) == 0 {
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
		rows = append(rows, []string{"  " + show.Harmless(l), scoreText(a.Scores[l])})
	}
	if err := show.Columns(w, rows); err != nil {
		return err
	}
	if more := len(labels) - mostScores; more > 0 {
		_, err := fmt.Fprintf(w, "  and %s; -o json has all\n", show.Count(more, "label"))
		return err
	}
	return nil
}

// answerOf formats the label with its score, or the values of a model that is not a classifier.
func answerOf(label string, score float64, values []float64) string {
	if label == "" {
		return valuesText(values)
	}
	return label + " " + scoreText(score)
}

func cmpDown(a, b float64) int {
	if a > b {
		return -1
	}
	return 1
}

func scoreText(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }

// valuesText formats the first values of a model that is not a classifier.
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

func rescoreCommand() command.Command {
	return command.Command{
		Name:    "scorers rescore",
		Short:   "rescore",
		Args:    "SCORER",
		Summary: "score a part of a scorer's stream again, onto another stream",
		About: `Each event of the range gets one answer: by the champion of its key, by the previous
champion, or by a named version. The answers go to another stream, so the scorer and
its readers are not affected. Events that cannot be scored are counted and do not
become dead letters. --from and --to are beginning, end, an offset (of each
partition), a time ago such as -1h or -2d, or a time as in RFC 3339. --resume continues
after an interruption.`,
		Examples: []command.Example{
			{"tidemill rescore intents --from -1h --version previous --to-stream what-if", "answers of the previous champion"},
			{"tidemill rescore intents --resume 3k7mzqab2c4d", "continue after an interruption"},
		},
		Make: func() command.Program {
			r := &rescore{}
			return &request{json: true, flags: r.flags, accept: r.accept, do: r.do}
		},
	}
}

type rescore struct{ ask api.RescoreAsk }

func (r *rescore) flags(f *command.FlagSet) {
	f.Text(&r.ask.From, "from", "", "WHERE", "beginning, OFFSET, -1h or a time")
	f.Text(&r.ask.To, "to", "", "WHERE", "the same, or end")
	f.Text(&r.ask.Version, "version", "", "VERSION", "champion, previous or a number (default champion)")
	f.Text(&r.ask.ToStream, "to-stream", "", "STREAM", "stream for the answers")
	f.Text(&r.ask.Resume, "resume", "", "ID", "id of an interrupted rescore to continue")
}

func (r *rescore) accept([]string) error {
	if r.ask.Resume != "" {
		if r.ask.From+r.ask.To+r.ask.Version+r.ask.ToStream != "" {
			return command.Usagef("--resume continues with the flags of the first call: leave out the other flags")
		}
		return nil
	}
	switch {
	case r.ask.From == "":
		return command.Usagef("--from is missing: give the start, such as --from -1h")
	case r.ask.ToStream == "":
		return command.Usagef("--to-stream is missing: give a stream of yours for the answers")
	}
	now := time.Now()
	if _, err := parseFrom(r.ask.From, now); err != nil {
		return err
	}
	if r.ask.To != "" {
		if _, err := follow.ParseFrom(r.ask.To, now); err != nil {
			return command.Usagef("--to %v", err)
		}
	}
	return nil
}

func (r *rescore) do(ctx context.Context, c *call) error {
	name, ask, named := c.positional[0], r.ask, client.NewAsking()
	all := api.Rescored{ID: cmp.Or(ask.Resume, ask.ID(name, string(named))), Reasons: map[string]string{}}
	for {
		part, err := c.g.Rescore(ctx, named, name, ask)
		if err != nil && (all.Records > 0 || errors.Is(err, broker.ErrInDoubt) || client.Status(err) == http.StatusServiceUnavailable) { // a part may be done
			return fmt.Errorf("%w; continue with: tidemill rescore %s --resume %s", err, show.Harmless(name), show.Harmless(all.ID))
		}
		if err != nil {
			return err
		}
		add(&all, &part)
		if part.Left == 0 {
			break
		}
		fmt.Fprintf(c.Stderr, "%s of %s left (%s)\n", show.Thousands(part.Left), show.Count(int(part.Records), "record"), show.Harmless(part.ID))
		ask = api.RescoreAsk{Resume: part.ID}
	}
	if c.json {
		return writeIndented(c.Stdout, all)
	}
	return tellRescored(c.Stdout, &all)
}

// add adds the result of one request to the total.
func add(all, part *api.Rescored) {
	all.ID, all.Records, all.Left = part.ID, part.Records, part.Left
	all.Scored, all.Passed, all.Skipped, all.Unscored = all.Scored+part.Scored, all.Passed+part.Passed, all.Skipped+part.Skipped, all.Unscored+part.Unscored
	all.Deleted += part.Deleted
	all.Since = cmp.Or(part.Since, all.Since)
	for at, why := range part.Reasons {
		if len(all.Reasons) < shownReasons {
			all.Reasons[at] = why
		}
	}
}

const shownReasons = 5

func tellRescored(w io.Writer, all *api.Rescored) error {
	fmt.Fprintf(w, "%s answered", show.Count(int(all.Scored), "event"))
	for _, other := range []struct {
		n    int64
		text string
	}{{all.Skipped, "answered before"}, {all.Passed, "not for this scorer"}, {all.Unscored, "not answered"}, {all.Deleted, "deleted by retention"}} {
		if other.n > 0 {
			fmt.Fprintf(w, ", %s %s", show.Thousands(other.n), other.text)
		}
	}
	fmt.Fprintf(w, "; the answers come from source …/rescore/%s\n", show.Harmless(all.ID))
	if all.Since != nil {
		fmt.Fprintf(w, "retention may have deleted events before %s; deleted events have no answers\n", all.Since.UTC().Format(time.RFC3339))
	}
	for _, at := range slices.Sorted(maps.Keys(all.Reasons)) {
		if _, err := fmt.Fprintf(w, "  %s: %s\n", show.Harmless(at), show.Harmless(all.Reasons[at])); err != nil {
			return err
		}
	}
	return nil
}
