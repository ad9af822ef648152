package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config/cesql"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/triggers/filter"
)

func streamsCommand() command.Command {
	return command.Command{
		Name:    "streams",
		Lists:   true,
		Watched: true,
		Summary: "list the streams: events, bytes, lag of their readers",
		About: `EVENTS and a lag are estimates, with ~, if a long stream has transactions: Kafka counts
their markers too. EVENTS/S is over the last minute. A reader's lag is the number of
events that it has not processed yet. lost is the number that expired before it had
read them.`,
		Examples: []command.Example{
			{"tidemill streams", "a table"},
			{"tidemill streams -o json", "with each partition's offsets"},
		},
		Make: func() command.Program { return &streamList{} },
	}
}

type streamList struct {
	connect.Reach
	output string
}

func (l *streamList) Flags(f *command.FlagSet) {
	f.Format(&l.output, "text or json")
	l.Reach.Flags(f)
}

func (l *streamList) Run(ctx context.Context, s *command.Session, _ []string) (err error) {
	from, err := l.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close(ctx)) }()
	all, err := from.Streams(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		e := json.NewEncoder(s.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	if len(all) == 0 {
		fmt.Fprintln(s.Stderr, "There are no streams yet; tidemill up and tidemill serve gateway create them.")
		return nil
	}
	return tabulate(s.Stdout, all)
}

func tabulate(w io.Writer, all []api.Stream) error {
	rows := [][]string{{"STREAM", "PARTITIONS", "EVENTS", "SIZE", "EVENTS/S", "KEPT", "READERS (LAG)"}}
	for _, i := range all {
		rows = append(rows, []string{show.Harmless(i.Name), strconv.Itoa(len(i.Partitions)), eventsText(i.Records, i.Estimated),
			volume(i.Bytes), fmt.Sprintf("%.1f", i.Rate), kept(i.RetentionSeconds), readers(i.Groups)})
	}
	return show.Table(w, rows)
}

// eventsText returns a number of events, with a tilde if it is an estimate.
func eventsText(n int64, estimated bool) string {
	if estimated {
		return "~" + show.Thousands(n)
	}
	return show.Thousands(n)
}

func volume(bytes *int64) string {
	if bytes == nil {
		return show.Size(-1)
	}
	return show.Size(*bytes)
}

func kept(seconds *int64) string {
	if seconds == nil {
		return show.Span(0)
	}
	return show.Span(time.Duration(*seconds) * time.Second)
}

func readers(groups []api.Group) string {
	text := ""
	for i, g := range groups {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s (%s", show.Harmless(g.Group), eventsText(g.Lag, g.Estimated))
		if g.Lost > 0 {
			text += fmt.Sprintf(", lost %s", show.Thousands(g.Lost))
		}
		text += ")"
	}
	return text
}

func tailCommand() command.Command {
	return command.Command{
		Name:    "streams tail",
		Daily:   true,
		Short:   "tail",
		Args:    "STREAM",
		Summary: "show a stream's events as they arrive",
		About: `It follows the stream until Ctrl-C, -n or --no-follow ends it. It commits no offsets,
so other readers are not affected. Events that arrive together are shown in the order
of time. There is no other order across partitions.

--from is beginning, end, an offset (of each partition), a time ago such as -1h or
-2d, or a time as in RFC 3339. --where is CloudEvents SQL. An event without an
attribute that it names does not match. A record that is not an event is shown as such,
with -o json on standard error.`,
		Examples: []command.Example{
			{"tidemill tail events", "new events"},
			{"tidemill tail events --from beginning --no-follow", "the events until now"},
			{`tidemill tail events --from -1h --where "type = 'new-data' AND subject LIKE 'bot-%'"`, "the last hour, filtered"},
			{"tidemill tail dead-letters --from beginning -n 1 -o json", "the first dead letter, as JSON"},
		},
		Make: func() command.Program { return &tailing{from: "end"} },
	}
}

type tailing struct {
	connect.Reach
	from, where, output string
	limit               int
	noFollow            bool

	start broker.Start
	match *filter.Filter // nil matches every event
}

func (t *tailing) Flags(f *command.FlagSet) {
	f.Text(&t.from, "from", "", "WHERE", "beginning, end, OFFSET, -1h or a time")
	f.Text(&t.where, "where", "w", "CESQL", "show only events that match")
	f.Number(&t.limit, "count", "n", "COUNT", "end after this many events; 0 means no limit")
	f.Yes(&t.noFollow, "no-follow", "stop at the present end of the stream")
	f.Format(&t.output, "text, or json: a structured CloudEvent per line")
	t.Reach.Flags(f)
}

func (t *tailing) Accept(positional []string) (err error) {
	if t.limit < 0 {
		return command.Usagef("-n %d: give 1 or more", t.limit)
	}
	if t.start, err = parseFrom(t.from, time.Now()); err != nil {
		return err
	}
	if t.match, err = parseFilter(t.where); err != nil {
		return err
	}
	return nil
}

func (t *tailing) Run(ctx context.Context, s *command.Session, positional []string) (err error) {
	from, err := t.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close(ctx)) }()
	what := connect.Following{Stream: positional[0], Start: t.start, ToEnd: t.noFollow, Where: t.match, Limit: t.limit,
		Begun: func() { t.sayHow(s, positional[0]) }}
	show := t.shower(s)
	shown := 0
	err = from.Follow(ctx, what, func(e *follow.Event) error {
		if ctx.Err() != nil { // the events that are fetched already may fill many screens
			return ctx.Err()
		}
		if err := show(e); err != nil {
			return err
		}
		if shown++; shown == t.limit {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil:
		return t.interrupted(ctx, err)
	case shown == 0:
		t.sayNothing(s, what.Stream)
	}
	return nil
}

// errEnough ends a tail that has shown as many events as requested.
var errEnough = errors.New("there are as many as were wanted")

// interrupted drops the error of a Ctrl-C, the normal end of following. With --no-follow it is an
// error, because the output is incomplete.
func (t *tailing) interrupted(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && t.noFollow:
		return errors.New("tail: interrupted before the stream's end")
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// parseFrom parses the start of a tail.
func parseFrom(text string, now time.Time) (broker.Start, error) {
	start, err := follow.ParseFrom(text, now)
	if err != nil {
		return start, command.Usagef("--from %v%s", err, aside(command.DidYouMean(text, []string{"beginning", "end"})))
	}
	return start, nil
}

// aside appends a question to a sentence.
func aside(question string) string {
	if question == "" {
		return ""
	}
	return ";" + question
}

// shownData is how much of an event's data a line has.
const shownData = 100

// shower returns a function that prints records, as text or as JSON.
func (t *tailing) shower(s *command.Session) func(*follow.Event) error {
	if t.output == "json" {
		return jsonShower(s.Stdout, s.Stderr, show.IsTerminal(s.Stdout))
	}
	return func(e *follow.Event) error {
		if e.Err != nil {
			return showBad(s.Stdout, e)
		}
		return showEvent(s.Stdout, e)
	}
}

// jsonShower prints events unchanged; on a terminal, without control characters.
func jsonShower(out, bad io.Writer, terminal bool) func(*follow.Event) error {
	return func(e *follow.Event) error {
		if e.Err != nil {
			return showBad(bad, e)
		}
		line := broker.MarshalStructured(&e.View)
		if terminal {
			line = show.HarmlessJSON(line)
		}
		_, err := out.Write(append(line, '\n'))
		return err
	}
}

// sayHow says at an empty terminal that the command waits for events.
func (t *tailing) sayHow(s *command.Session, stream string) {
	if !t.noFollow && t.from == "end" && show.IsTerminal(s.Stderr) {
		fmt.Fprintf(s.Stderr, "Waiting for events on %s; Ctrl-C ends it, --from beginning shows earlier ones.\n", stream)
	}
}

// quotesNote says how to write a text if a condition compares with an attribute; empty if it does not.
func quotesNote(where string) string {
	if name := cesql.Unquoted(where); name != "" {
		return fmt.Sprintf(" In it %s is the name of an attribute; a text is written in quotes: '%[1]s'.", show.Harmless(name))
	}
	return ""
}

// sayNothing says whether there are no events or no matches: a misspelt attribute is not an error,
// and matches no event.
func (t *tailing) sayNothing(s *command.Session, stream string) {
	if t.from != "beginning" {
		stream += " from " + t.from + " on"
	}
	switch {
	case t.output == "json":
	case t.match != nil:
		fmt.Fprintf(s.Stderr, "No event on %s matches --where.%s\n", stream, quotesNote(t.match.String()))
	default:
		fmt.Fprintf(s.Stderr, "There are no events on %s.\n", stream)
	}
}

func showEvent(w io.Writer, e *follow.Event) error {
	_, err := fmt.Fprintf(w, "%s  %-16s %-12s %s  %s\n", clock(e.Received), show.Harmless(e.Type), orDash(show.Harmless(e.Subject)), show.Harmless(e.ID), glimpse(&e.View))
	return err
}

// showBad prints where a bad record is, so that its producer can be found.
func showBad(w io.Writer, e *follow.Event) error {
	_, err := fmt.Fprintf(w, "%s  not an event: %v (%s, key %q, %s: %s)\n", clock(e.Received), show.Harmless(e.Err.Error()),
		place(e.Stream, e.Partition, e.Offset), show.Cut(string(e.Key), 40), show.Size(int64(len(e.Data))), oneLine(e.Data))
	return err
}

// clock formats the time of a record, with the date if it is not today.
func clock(t time.Time) string {
	t = t.Local()
	if now := time.Now(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05.000")
	}
	return t.Format("15:04:05.000")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// glimpse returns the event's extensions and the beginning of its data.
func glimpse(v *broker.View) string {
	var parts []string
	for _, a := range v.Extensions {
		parts = append(parts, a.Name+"="+show.Harmless(show.Cut(a.Value, 40)))
	}
	if v.Data != nil {
		parts = append(parts, oneLine(v.Data))
	}
	return strings.Join(parts, " ")
}

// oneLine returns the beginning of the data, without control characters, if it is text.
func oneLine(data []byte) string {
	if len(data) == 0 {
		return "(empty)"
	}
	if !utf8.Valid(data) {
		return fmt.Sprintf("(%s of binary data)", show.Size(int64(len(data))))
	}
	return show.Cut(show.Harmless(string(data[:min(len(data), 4*shownData)])), shownData)
}

// parseFilter compiles CloudEvents SQL. Without a text it returns nil.
func parseFilter(text string) (*filter.Filter, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	filter, err := filter.Compile(text)
	if wrong, ok := errors.AsType[*cesql.SyntaxError](err); ok {
		return nil, command.Usagef("--where, %v\n  %s\n  %s^", err, oneRow(text), strings.Repeat(" ", wrong.Column-1))
	}
	return filter, err
}

// oneRow replaces line breaks and tabs by spaces, so that the mark below the text is in the right
// column.
func oneRow(text string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(text)
}
