package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/client"
)

const jsonType = "application/json"

func publishCommand() command {
	return command{
		name:    "publish",
		args:    "[TYPE]",
		summary: "publish an event, or a file of events",
		about: `It ends when every event has been acknowledged by all in-sync replicas. An
event goes to the stream that claims its type in the config, else to "events".

A file has one structured CloudEvent (JSON) a line. Each bad line is reported as
file:line and the others are published; then the exit status is 1. Publishing the
file again is safe: of events with the same source and id the first counts.

` + whereTo,
		examples: []example{
			{`tidemill publish bot-created --subject bot-42 -d '{"name": "Ada"}'`, "one event"},
			{`tidemill publish new-data --subject bot-42 -d @change.json --ext branch=main`, "data from a file, and an attribute to filter on"},
			{`tidemill publish --file events.ndjson`, "a file of events"},
			{`tidemill tail events --from -1h --no-follow -o json | tidemill publish --file - --stream copies`, "an hour of one stream onto another"},
		},
		make: func() program { return &publish{source: "/cli", contentType: jsonType, output: "text"} },
	}
}

type publish struct {
	reach
	subject, source, id, time string
	stream, data, contentType string
	file, output              string
	extensions                []broker.Attribute
	given                     bool // whether --data is given; it may be empty
}

func (p *publish) flags(f *flagSet) {
	f.text(&p.subject, "subject", "s", "KEY", "key of the event: events of one key stay in order, and it selects the model")
	f.each("d", "JSON", "the data: JSON, @FILE or @- for standard input", p.takeData)
	f.text(&p.source, "source", "", "URI", "who says so")
	f.text(&p.id, "id", "", "ID", "unique for its source (default: a random one)")
	f.text(&p.time, "time", "", "TIME", "when it happened, RFC 3339 (default: now)")
	f.each("ext", "NAME=VALUE", "an extension attribute; may be given several times", p.takeExtension)
	f.text(&p.contentType, "content-type", "", "TYPE", "of the data")
	f.text(&p.stream, "stream", "", "STREAM", "instead of the one that claims the type")
	f.text(&p.file, "file", "", "FILE", "publish the events of a file, one a line; - is standard input")
	f.text(&p.output, "output", "o", "FORMAT", "text, or json: a receipt a line")
	p.reach.flags(f)
}

func (p *publish) takeData(text string) error {
	p.data, p.given = text, true
	return nil
}

func (p *publish) takeExtension(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("write it as name=value")
	}
	p.extensions = append(p.extensions, broker.Attribute{Name: name, Value: value})
	return nil
}

func (p *publish) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if p.file == "" {
		if len(positional) == 0 {
			return usagef("TYPE is missing: name the event's type, such as bot-created, or give --file")
		}
		return wants(positional, "TYPE")
	}
	if len(positional) > 0 || p.subject != "" || p.id != "" || p.time != "" || p.given || len(p.extensions) > 0 {
		return usagef("with --file the events are whole: leave out TYPE and the flags that describe one event")
	}
	return nil
}

func (p *publish) run(ctx context.Context, s *session, positional []string) (err error) {
	if err := tidemill.ReservedStream(p.stream); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if p.file != "" {
		return p.publishFile(ctx, s)
	}
	v, err := p.event(ctx, s, positional[0])
	if err != nil {
		return err
	}
	to, err := p.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close(ctx)) }()
	r, err := to.publish(ctx, p.stream, &v)
	if err != nil {
		return p.explain(err, v.ID)
	}
	return p.print(s.stdout, &v, r)
}

// explain adds what to do about an event that was not acknowledged.
func (p *publish) explain(err error, id string) error {
	if errors.Is(err, broker.ErrInDoubt) {
		return fmt.Errorf("%w; publish it again with --id %s: the first counts", err, id)
	}
	return err
}

// event makes an event from the flags.
func (p *publish) event(ctx context.Context, s *session, typ string) (broker.View, error) {
	v := broker.View{Type: typ, ID: p.id, Source: p.source, Subject: p.subject, Time: p.time, Extensions: p.extensions}
	if v.ID == "" {
		v.ID = strings.ToLower(rand.Text())
	}
	if v.Time == "" {
		v.Time = time.Now().UTC().Format(time.RFC3339Nano)
	}
	if err := tidemill.Reserved(v.Type, v.Source); err != nil {
		return v, fmt.Errorf("publish: %w", err)
	}
	if p.given {
		data, err := p.readData(ctx, s.stdin)
		if err != nil {
			return v, fmt.Errorf("publish: %w", err)
		}
		v.Data, v.DataContentType = data, p.contentType
	}
	if err := v.Validate(); err != nil {
		return v, fmt.Errorf("publish: %w", err)
	}
	return v, nil
}

func (p *publish) readData(ctx context.Context, stdin io.Reader) ([]byte, error) {
	data, from := []byte(p.data), "the data"
	if name, ok := strings.CutPrefix(p.data, "@"); ok {
		var err error
		if data, err = readFileOr(name, untilDone(ctx, stdin)); err != nil {
			return nil, fmt.Errorf("read the data: %w", err)
		}
		if name == "-" {
			name = "standard input"
		}
		from += " in " + name
	}
	if p.contentType != jsonType || json.Valid(data) {
		return data, nil
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s is empty, which is not JSON; leave out -d for an event without data", from)
	}
	return nil, fmt.Errorf("%s is not JSON: %w; mend it, or say what it is with --content-type", from, jsonFault(data))
}

func readFileOr(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

func jsonFault(data []byte) error {
	var any json.RawMessage
	err := json.Unmarshal(data, &any)
	if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
		return fmt.Errorf("%w (byte %d)", err, at.Offset)
	}
	return err
}

// receipt is the JSON of an acknowledged event. The place of a repeated event is not known.
type receipt struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Type   string `json:"type"`
	*lies
	Repeated bool `json:"repeated,omitempty"`
}

type lies struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // -1 if Kafka does not know it any more
}

func (p *publish) print(w io.Writer, v *broker.View, r client.Receipt) (err error) {
	switch {
	case p.output == "json":
		told := receipt{ID: v.ID, Source: v.Source, Type: v.Type, Repeated: r.Repeated}
		if !r.Repeated {
			told.lies = &lies{r.Stream, r.Partition, r.Offset}
		}
		err = json.NewEncoder(w).Encode(told)
	case r.Repeated:
		_, err = fmt.Fprintf(w, "%s %s was here before: the first counts, and nothing was stored\n", v.Type, v.ID)
	default:
		_, err = fmt.Fprintf(w, "published %s %s to %s\n", v.Type, v.ID, place(r.Stream, r.Partition, r.Offset))
	}
	return err
}

// place formats the place of an event.
func place(stream string, partition int32, offset int64) string {
	switch {
	case partition < 0:
		return stream + ", place unknown"
	case offset < 0:
		return fmt.Sprintf("%s, partition %d", stream, partition)
	}
	return fmt.Sprintf("%s, partition %d, offset %d", stream, partition, offset)
}

func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return usagef("-o %q: give text or json", output)
	}
	return nil
}

var errInterrupted = errors.New("interrupted")

// untilDone returns a reader that ends with the context. A read from a silent terminal or pipe
// cannot be cancelled, so its goroutine stays blocked. This is harmless, because the process ends
// soon.
func untilDone(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(errInterrupted) })
	return r
}
