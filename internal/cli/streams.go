package cli

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
	"tidemill.dev/triggers/filter"
)

func streamsCommand() command {
	return command{
		name:    "streams",
		lists:   true,
		watched: true,
		summary: "list the streams: events, bytes, lag of their readers",
		about: `EVENTS and a lag are estimates, with ~, if a long stream has transactions: Kafka counts
their markers too. EVENTS/S is over the last minute. A reader's lag is the number of events that it has not
processed yet. lost is the number that expired before it had read them.

` + whereTo,
		examples: []example{
			{"tidemill streams", "a table"},
			{"tidemill streams -o json", "with each partition's offsets"},
		},
		make: func() program { return &streamList{output: "text"} },
	}
}

type streamList struct {
	reach
	output string
}

func (l *streamList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.reach.flags(f)
}

func (l *streamList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *streamList) run(ctx context.Context, s *session, _ []string) (err error) {
	from, err := l.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.close(ctx)) }()
	all, err := from.streams(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		e := json.NewEncoder(s.stdout)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	if len(all) == 0 {
		fmt.Fprintln(s.stderr, "There are no streams yet; tidemill up and tidemill serve gateway create them.")
		return nil
	}
	return tabulate(s.stdout, all)
}

func tabulate(w io.Writer, all []api.Stream) error {
	rows := [][]string{{"STREAM", "PARTITIONS", "EVENTS", "SIZE", "EVENTS/S", "KEPT", "READERS (LAG)"}}
	for _, i := range all {
		rows = append(rows, []string{harmless(i.Name), strconv.Itoa(len(i.Partitions)), eventsText(i.Records, i.Estimated),
			volume(i.Bytes), fmt.Sprintf("%.1f", i.Rate), kept(i.RetentionSeconds), readers(i.Groups)})
	}
	return table(w, rows)
}

// eventsText returns a number of events, with a tilde if it is an estimate.
func eventsText(n int64, estimated bool) string {
	if estimated {
		return "~" + thousands(n)
	}
	return thousands(n)
}

func volume(bytes *int64) string {
	if bytes == nil {
		return size(-1)
	}
	return size(*bytes)
}

func kept(seconds *int64) string {
	if seconds == nil {
		return span(0)
	}
	return span(time.Duration(*seconds) * time.Second)
}

func readers(groups []api.Group) string {
	text := ""
	for i, g := range groups {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s (%s", harmless(g.Group), eventsText(g.Lag, g.Estimated))
		if g.Lost > 0 {
			text += fmt.Sprintf(", lost %s", thousands(g.Lost))
		}
		text += ")"
	}
	return text
}

func tailCommand() command {
	return command{
		name:    "streams tail",
		daily:   true,
		short:   "tail",
		args:    "STREAM",
		summary: "show a stream's events as they arrive",
		about: `It follows the stream until Ctrl-C, -n or --no-follow ends it. It commits no offsets,
so other readers are not affected. Events that arrive together are shown in the order
of time. There is no other order across partitions.

--from is beginning, end, an offset (of each partition), a time ago such as -1h or
-2d, or a time as in RFC 3339. --where is CloudEvents SQL. An event without an
attribute that it names does not match. A record that is not an event is shown as such,
with -o json on standard error.

` + whereTo,
		examples: []example{
			{"tidemill tail events", "new events"},
			{"tidemill tail events --from beginning --no-follow", "the events until now"},
			{`tidemill tail events --from -1h --where "type = 'new-data' AND subject LIKE 'bot-%'"`, "the last hour, filtered"},
			{"tidemill tail dead-letters --from beginning -n 1 -o json", "the first dead letter, as JSON"},
		},
		make: func() program { return &tailing{from: "end", output: "text"} },
	}
}

type tailing struct {
	reach
	from, where, output string
	limit               int
	noFollow            bool

	start broker.Start
	match *filter.Filter // nil matches every event
}

func (t *tailing) flags(f *flagSet) {
	f.text(&t.from, "from", "", "WHERE", "beginning, end, OFFSET, -1h or a time")
	f.text(&t.where, "where", "w", "CESQL", "show only events that match")
	f.number(&t.limit, "count", "n", "COUNT", "end after this many events; 0 means no limit")
	f.yes(&t.noFollow, "no-follow", "stop at the present end of the stream")
	f.text(&t.output, "output", "o", "FORMAT", "text, or json: a structured CloudEvent per line")
	t.reach.flags(f)
}

func (t *tailing) accept(positional []string) (err error) {
	if err := checkOutput(t.output); err != nil {
		return err
	}
	if t.limit < 0 {
		return usagef("-n %d: give 1 or more", t.limit)
	}
	if t.start, err = parseFrom(t.from, time.Now()); err != nil {
		return err
	}
	if t.match, err = parseFilter(t.where); err != nil {
		return err
	}
	return wants(positional, "STREAM")
}

func (t *tailing) run(ctx context.Context, s *session, positional []string) (err error) {
	from, err := t.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.close(ctx)) }()
	what := following{stream: positional[0], start: t.start, toEnd: t.noFollow, where: t.match, limit: t.limit,
		begun: func() { t.sayHow(s, positional[0]) }}
	show := t.shower(s)
	shown := 0
	err = from.follow(ctx, what, func(e *follow.Event) error {
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
		t.sayNothing(s, what.stream)
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
	return fmt.Errorf("tail: %w", err)
}

// parseFrom parses the start of a tail.
func parseFrom(text string, now time.Time) (broker.Start, error) {
	start, err := follow.ParseFrom(text, now)
	if err != nil {
		return start, usagef("--from %v%s", err, aside(didYouMean(text, []string{"beginning", "end"})))
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
func (t *tailing) shower(s *session) func(*follow.Event) error {
	if t.output == "json" {
		return jsonShower(s.stdout, s.stderr, isTerminal(s.stdout))
	}
	return func(e *follow.Event) error {
		if e.Err != nil {
			return showBad(s.stdout, e)
		}
		return showEvent(s.stdout, e)
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
			line = harmlessJSON(line)
		}
		_, err := out.Write(append(line, '\n'))
		return err
	}
}

// sayHow says at an empty terminal that the command waits for events.
func (t *tailing) sayHow(s *session, stream string) {
	if !t.noFollow && t.from == "end" && isTerminal(s.stderr) {
		fmt.Fprintf(s.stderr, "Waiting for events on %s; Ctrl-C ends it, --from beginning shows earlier ones.\n", stream)
	}
}

// quotesNote says how to write a text if a condition compares with an attribute; empty if it does not.
func quotesNote(where string) string {
	if name := cesql.Unquoted(where); name != "" {
		return fmt.Sprintf(" In it %s is the name of an attribute; a text is written in quotes: '%[1]s'.", harmless(name))
	}
	return ""
}

// sayNothing says whether there are no events or no matches: a misspelt attribute is not an error,
// and matches no event.
func (t *tailing) sayNothing(s *session, stream string) {
	if t.from != "beginning" {
		stream += " from " + t.from + " on"
	}
	switch {
	case t.output == "json":
	case t.match != nil:
		fmt.Fprintf(s.stderr, "No event on %s matches --where.%s\n", stream, quotesNote(t.match.String()))
	default:
		fmt.Fprintf(s.stderr, "There are no events on %s.\n", stream)
	}
}

func showEvent(w io.Writer, e *follow.Event) error {
	_, err := fmt.Fprintf(w, "%s  %-16s %-12s %s  %s\n", clock(e.Received), harmless(e.Type), orDash(harmless(e.Subject)), harmless(e.ID), glimpse(&e.View))
	return err
}

// showBad prints where a bad record is, so that its producer can be found.
func showBad(w io.Writer, e *follow.Event) error {
	_, err := fmt.Fprintf(w, "%s  not an event: %v (%s, key %q, %s: %s)\n", clock(e.Received), harmless(e.Err.Error()),
		place(e.Stream, e.Partition, e.Offset), cut(string(e.Key), 40), size(int64(len(e.Data))), oneLine(e.Data))
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
		parts = append(parts, a.Name+"="+harmless(cut(a.Value, 40)))
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
		return fmt.Sprintf("(%s of binary data)", size(int64(len(data))))
	}
	return cut(harmless(string(data[:min(len(data), 4*shownData)])), shownData)
}

// parseFilter compiles CloudEvents SQL. Without a text it returns nil.
func parseFilter(text string) (*filter.Filter, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	filter, err := filter.Compile(text)
	if wrong, ok := errors.AsType[*cesql.SyntaxError](err); ok {
		return nil, usagef("--where, %v\n  %s\n  %s^", err, oneRow(text), strings.Repeat(" ", wrong.Column-1))
	}
	return filter, err
}

// oneRow replaces line breaks and tabs by spaces, so that the mark below the text is in the right
// column.
func oneRow(text string) string {
	return strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(text)
}
