package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"tidemill.dev/api"
)

func streamsCommand() command {
	return command{
		name:    "streams",
		lists:   true,
		summary: "list the streams, how full they are and how far behind their readers",
		about: `EVENTS/S is over the last minute. A reader's lag is how many events it has not
yet dealt with; lost is how many expired before it had read them.

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
	rows := [][]string{{"STREAM", "PARTITIONS", "RECORDS", "SIZE", "EVENTS/S", "KEPT", "READERS (LAG)"}}
	for _, i := range all {
		rows = append(rows, []string{harmless(i.Name), strconv.Itoa(len(i.Partitions)), thousands(i.Records),
			volume(i.Bytes), fmt.Sprintf("%.1f", i.Rate), kept(i.RetentionSeconds), readers(i.Groups)})
	}
	return table(w, rows)
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
		text += fmt.Sprintf("%s (%s", harmless(g.Group), thousands(g.Lag))
		if g.Lost > 0 {
			text += fmt.Sprintf(", lost %s", thousands(g.Lost))
		}
		text += ")"
	}
	return text
}
