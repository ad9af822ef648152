package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"tidemill.dev/broker"
)

func streamsCommand() command {
	return command{
		name:    "streams",
		summary: "list the streams, how full they are and how far behind their readers",
		about: `EVENTS/S is over the last minute. A reader's lag is how many events it has not
yet dealt with; lost is how many expired before it had read them.`,
		examples: []example{
			{"tidemill streams", "a table"},
			{"tidemill streams -o json", "with each partition's offsets"},
		},
		make: func() program { return &streamList{output: "text"} },
	}
}

type streamList struct {
	connection
	output string
}

func (l *streamList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.connection.flags(f)
}

func (l *streamList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *streamList) run(ctx context.Context, s *session, _ []string) (err error) {
	p, err := l.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePlatform(ctx, p)) }()
	infos, err := p.Broker().Streams(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		return writeStreams(s.stdout, infos)
	}
	if len(infos) == 0 {
		fmt.Fprintf(s.stderr, "There are no streams under the name %s; tidemill up creates them.\n", p.Names().Install())
		return nil
	}
	return tabulate(s.stdout, infos)
}

func tabulate(w io.Writer, infos []broker.StreamInfo) error {
	rows := [][]string{{"STREAM", "PARTITIONS", "RECORDS", "SIZE", "EVENTS/S", "KEPT", "READERS (LAG)"}}
	for _, i := range infos {
		rows = append(rows, []string{i.Name, strconv.Itoa(len(i.Partitions)), thousands(i.Records),
			size(i.Bytes), fmt.Sprintf("%.1f", i.Rate), span(i.Retention), readers(i.Groups)})
	}
	return table(w, rows)
}

func readers(groups []broker.GroupLag) string {
	text := ""
	for i, g := range groups {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s (%s", g.Group, thousands(g.Lag))
		if g.Lost > 0 {
			text += fmt.Sprintf(", lost %s", thousands(g.Lost))
		}
		text += ")"
	}
	return text
}

// streamJSON is what -o json prints of a stream. It is a promise to scripts, so
// it is not the broker's own struct.
type streamJSON struct {
	Name             string          `json:"name"`
	Partitions       []partitionJSON `json:"partitions"`
	Records          int64           `json:"records"`
	Bytes            *int64          `json:"bytes"` // null where Kafka does not say
	Rate             float64         `json:"rate"`
	RetentionSeconds *int64          `json:"retentionSeconds"` // null is for ever
	Groups           []groupJSON     `json:"groups"`
}

type partitionJSON struct {
	Partition int   `json:"partition"`
	Start     int64 `json:"start"`
	End       int64 `json:"end"`
}

type groupJSON struct {
	Group string `json:"group"`
	Lag   int64  `json:"lag"`
	Lost  int64  `json:"lost"`
}

func writeStreams(w io.Writer, infos []broker.StreamInfo) error {
	all := make([]streamJSON, 0, len(infos))
	for _, i := range infos {
		one := streamJSON{Name: i.Name, Records: i.Records, Rate: i.Rate,
			Partitions: []partitionJSON{}, Groups: []groupJSON{}}
		if i.Bytes >= 0 {
			one.Bytes = &i.Bytes
		}
		if i.Retention > 0 {
			seconds := int64(i.Retention.Seconds())
			one.RetentionSeconds = &seconds
		}
		for _, p := range i.Partitions {
			one.Partitions = append(one.Partitions, partitionJSON{p.Partition, p.Start, p.End})
		}
		for _, g := range i.Groups {
			one.Groups = append(one.Groups, groupJSON{g.Group, g.Lag, g.Lost})
		}
		all = append(all, one)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}
