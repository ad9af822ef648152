package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func outcomesCommand() command.Command {
	return command.Command{
		Name:    "outcomes",
		Lists:   true,
		Watched: true,
		Summary: "list answers together with their truth, and how many were right",
		About: `An outcome is an answer of a scorer whose truth is known: by a label, by a person, or
because no label came in time. A later label that says something else corrects it; the
list has the newest truth of each answer. --from is as in tidemill tail. --key is the
key of the model that has answered.`,
		Examples: []command.Example{
			{"tidemill outcomes", "the outcomes of the last day"},
			{"tidemill outcomes --scorer intents --key bot-42 --wrong", "the wrong answers of one model"},
			{"tidemill outcomes --model intent/bot-42 --version 7 --from -30d -o json", "for a script"},
		},
		Make: func() command.Program { return &outcomeList{} },
	}
}

// outcomeList lists outcomes.
type outcomeList struct {
	connect.Reach
	scorer, key, model, from, output string
	version, limit                   int
	wrong                            bool

	start broker.Start
}

func (l *outcomeList) Flags(f *command.FlagSet) {
	f.Text(&l.scorer, "scorer", "s", "SCORER", "only answers of this scorer")
	f.Text(&l.key, "key", "k", "KEY", "only answers of this key's model")
	f.Text(&l.model, "model", "m", "MODEL", "only answers of this model")
	f.Number(&l.version, "version", "", "NUMBER", "only answers of this version")
	f.Yes(&l.wrong, "wrong", "only wrong answers")
	f.Text(&l.from, "from", "", "WHERE", "beginning, OFFSET, -1h or a time (default -1d)")
	f.Number(&l.limit, "count", "n", "COUNT", "show the newest COUNT (default 50); all are counted")
	f.Format(&l.output, "text, or json: an outcome per line")
	l.Reach.Flags(f)
}

func (l *outcomeList) Accept(positional []string) (err error) {
	if l.limit < 0 || l.version < 0 {
		return command.Usagef("-n and --version: give 1 or more")
	}
	if l.limit == 0 {
		l.limit = 50
	}
	if l.from == "" {
		l.from = "-1d"
	}
	if l.start, err = parseFrom(l.from, time.Now()); err != nil {
		return err
	}
	return nil
}

func (l *outcomeList) Run(ctx context.Context, s *command.Session, _ []string) (err error) {
	from, err := l.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close(ctx)) }()
	book := outcomeBook{at: map[outcomeKey]*tidemill.OutcomeData{}}
	err = from.Follow(ctx, connect.Following{Stream: tidemill.StreamOutcomes, Start: l.start, ToEnd: true, Begun: func() {}}, func(e *follow.Event) error {
		l.take(&book, e)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the outcomes: %w", err)
	}
	if book.skipped > 0 {
		fmt.Fprintf(s.Stderr, "Not counted, because unreadable: %s. The first: %s\n", show.Count(book.skipped, "record"), book.why)
	}
	if l.output == "json" {
		return book.write(s.Stdout, l)
	}
	return book.tell(s.Stdout, s.Stderr, l)
}

// outcomeKey names an answer.
type outcomeKey struct{ scorer, place string }

// outcomeBook has the newest revision of each answer's outcome.
type outcomeBook struct {
	at  map[outcomeKey]*tidemill.OutcomeData
	all []*tidemill.OutcomeData // in the order of their first revision here

	skipped int    // number of records that are no outcome, or cannot be read
	why     string // first of them, with the reason
}

// take adds an event of the stream of outcomes if it is asked for.
func (l *outcomeList) take(b *outcomeBook, e *follow.Event) {
	d, err := readOutcome(e)
	if err != nil {
		if b.skipped++; b.skipped == 1 {
			at := broker.Position{Stream: e.Stream, Partition: e.Partition, Offset: e.Offset}
			b.why = show.Harmless(cmp.Or(e.ID, at.Place()) + ": " + err.Error())
		}
		return
	}
	if l.scorer != "" && d.Scorer != l.scorer || l.key != "" && d.Key != l.key || l.model != "" && d.Model != l.model || l.version != 0 && d.Version != l.version {
		return
	}
	if was := b.at[outcomeKey{d.Scorer, d.Place}]; was == nil {
		b.at[outcomeKey{d.Scorer, d.Place}] = d
		b.all = append(b.all, d)
	} else if was.Revision < d.Revision {
		*was = *d
	}
}

func readOutcome(e *follow.Event) (*tidemill.OutcomeData, error) {
	d := &tidemill.OutcomeData{}
	switch {
	case e.Err != nil:
		return nil, e.Err
	case e.Type != tidemill.TypeOutcome && e.Type != tidemill.TypeOutcomeCorrected:
		return nil, fmt.Errorf("its type is %s", e.Type)
	}
	if err := json.Unmarshal(e.Data, d); err != nil {
		return nil, err
	}
	if d.Place == "" {
		return nil, errors.New("it names no answer")
	}
	return d, nil
}

// shown returns the newest outcomes that are asked for.
func (b *outcomeBook) shown(l *outcomeList) []*tidemill.OutcomeData {
	all := b.all
	if l.wrong {
		all = slices.DeleteFunc(slices.Clone(all), func(d *tidemill.OutcomeData) bool { return d.Right() })
	}
	return all[max(0, len(all)-l.limit):]
}

func (b *outcomeBook) write(w io.Writer, l *outcomeList) error {
	to := json.NewEncoder(w)
	for _, d := range b.shown(l) {
		if err := to.Encode(d); err != nil {
			return err
		}
	}
	return nil
}

func (b *outcomeBook) tell(out, aside io.Writer, l *outcomeList) error {
	if len(b.all) == 0 {
		fmt.Fprintln(aside, "There are no such outcomes. An answer has one once its label has arrived; tidemill scorers SCORER -o json shows where labels come from.")
		return nil
	}
	rows := [][]string{{"EVENT", "KEY", "VERSION", "ANSWER", "TRUTH", "FROM", "ANSWERED"}}
	right := 0
	for _, d := range b.all {
		if d.Right() {
			right++
		}
	}
	for _, d := range b.shown(l) {
		rows = append(rows, []string{show.Harmless(d.Place), show.Harmless(d.Key), show.Harmless(d.Model) + "@" + strconv.Itoa(d.Version), show.Harmless(answerOf(d.Label, d.Score, nil)),
			show.Harmless(d.Truth), basisText(d), d.Answered.Local().Format("2006-01-02 15:04:05")})
	}
	if err := show.Table(out, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s of %s right (%.1f %%)\n", show.Thousands(int64(right)), show.Count(len(b.all), "answer"), 100*float64(right)/float64(len(b.all)))
	return err
}

// basisText says where a truth comes from.
func basisText(d *tidemill.OutcomeData) string {
	text := map[tidemill.OutcomeBasis]string{tidemill.OutcomeLabelled: "label", tidemill.OutcomeSaid: "person", tidemill.OutcomeAssumed: "no label"}[d.Basis]
	if text == "" {
		text = show.Harmless(string(d.Basis))
	}
	if d.Before != "" && d.Before != d.Truth {
		text += ", was " + show.Harmless(d.Before)
	}
	return text
}

func labelCommand() command.Command {
	return command.Command{
		Name:    "outcomes label",
		Short:   "label",
		Args:    "EVENT TRUTH",
		Summary: "give the true label of an answered event",
		About: `EVENT is the place of the event that was answered, such as messages/3/17: the id of the
answer, which tidemill tail and tidemill why show. It may be the event's id if the
scorer matches labels by an id. Your label counts like one that arrives on the stream of
labels: the last one is the truth. The outcome has your name as its basis. A label of an
event without an answer waits for the answer.`,
		Examples: []command.Example{
			{"tidemill label messages/3/17 refund", "the truth about one answer"},
			{`tidemill label order-1234 fraud --scorer frauds --source /shop --reason "called the customer"`, "by the event's id"},
		},
		Make: func() command.Program {
			l := &labelling{}
			return asking(l.ask, l.tell).with(l.flags, nil)
		},
	}
}

type labelling struct {
	scorer string
	asked  api.LabelAsk
}

func (l *labelling) flags(f *command.FlagSet) {
	f.Text(&l.scorer, "scorer", "s", "SCORER", "scorer that has answered (default the only one with labels that reads the stream)")
	f.Text(&l.asked.Source, "source", "", "SOURCE", "source of the event, if EVENT is an id")
	f.Text(&l.asked.Reason, "reason", "", "TEXT", "reason, which the label has too")
}

func (l *labelling) ask(ctx context.Context, g *client.Gateway, positional []string) (label api.LabelDone, err error) {
	l.asked.Event, l.asked.Truth = positional[0], positional[1]
	if l.scorer == "" {
		all, err := g.Scorers(ctx)
		if err != nil {
			return label, err
		}
		if l.scorer, err = labelledScorer(all.Scorers, l.asked.Event); err != nil {
			return label, err
		}
	}
	return g.Label(ctx, l.scorer, l.asked)
}

func (l *labelling) tell(s *command.Session, label *api.LabelDone) error {
	at := broker.Position{Stream: label.At.Stream, Partition: label.At.Partition, Offset: label.At.Offset}
	_, err := fmt.Fprintf(s.Stdout, "labelled %s %s for scorer %s: %s\nIf the scorer has answered it, the outcome follows within seconds. If not, the label waits for the answer until\n%s, and then becomes a dead letter.\n",
		show.Harmless(l.asked.Event), show.Harmless(label.Truth), show.Harmless(label.Scorer), show.Harmless(at.Place()), seconds(label.Until))
	return err
}

// labelledScorer returns the only scorer that may have answered an event and has labels.
func labelledScorer(all []api.Scorer, event string) (string, error) {
	at, isPlace := broker.ParsePlace(event)
	isPlace = isPlace && slices.ContainsFunc(all, func(s api.Scorer) bool { return s.From == at.Stream }) // else it is an id
	var names []string
	for i := range all {
		if s := &all[i]; s.Labels != nil && (!isPlace || s.From == at.Stream) {
			names = append(names, s.Name)
		}
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("no scorer with labels may have answered %s; add `labels` to a scorer in the config", show.Harmless(event))
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("several scorers have labels; name one with --scorer: %s", show.Harmless(strings.Join(names, ", ")))
}

// mostDays is the number of days that are shown.
const mostDays = 7

// showLive prints how good the answers of the versions were in the scorers. Of one version it prints the
// confusion, the calibration and the last days.
func showLive(w io.Writer, look lookedAt, all bool, s show.Screen) error {
	for i := range look.model.Live {
		l := &look.model.Live[i]
		own := look.version != nil && l.Version == look.version.Number
		if !all && !own {
			continue
		}
		fmt.Fprintf(w, "\nLive, version %d in scorer %s: %s\n", l.Version, show.Harmless(l.Scorer), show.Harmless(l.Sentence))
		if !own {
			continue
		}
		if err := showLiveVersion(w, l, s); err != nil {
			return err
		}
	}
	return nil
}

func showLiveVersion(w io.Writer, l *api.LiveFigures, s show.Screen) error {
	said := []string{fmt.Sprintf("95%%: %s to %s", figure(l.Accuracy.Low), figure(l.Accuracy.High))}
	if l.CalibrationError != nil {
		said = append(said, "calibration error "+figure(*l.CalibrationError))
	}
	if l.Assumed > 0 {
		said = append(said, show.Thousands(int64(l.Assumed))+" without a label")
	}
	if l.Corrected > 0 {
		said = append(said, show.Count(l.Corrected, "correction"))
	}
	fmt.Fprintln(w, strings.Join(said, "; "))
	rows := [][]string{{"DAY", "ANSWERS", "RIGHT"}}
	for _, d := range l.Days[max(0, len(l.Days)-mostDays):] {
		rows = append(rows, []string{show.Harmless(d.Day), show.Thousands(int64(d.Answers)), percent(float64(d.Right) / float64(max(d.Answers, 1)))})
	}
	if err := show.Table(w, rows); err != nil {
		return err
	}
	f := &tidemill.Figures{Examples: l.Answers, Accuracy: l.Accuracy, Classes: l.Classes, Cells: l.Cells}
	d := drawMatrix(fmt.Sprintf("version %d, live", l.Version), f, s)
	for i, line := range d.lines {
		if i == 0 {
			fmt.Fprintln(w, "\nConfusion matrix (rows: true, columns: answered):")
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	return nil
}
