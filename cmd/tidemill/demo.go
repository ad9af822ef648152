package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/telemetry"
)

// demoWithin ends a demo that hangs. It goes on for as long as a machine takes that
// has much else to do, which was more than five minutes.
const demoWithin = 15 * time.Minute

// demoConfig has streams of the user's own beside the built-in ones, and a
// trigger.
const demoConfig = `version: 1
name: demo
streams:
  messages: {partitions: 4, types: [message]}
  orders: {partitions: 4, types: [order-placed, invoice-due]}
  chat: {partitions: 4, types: [said]}
  scored: {partitions: 4}
triggers:
  billing:
    when: {type: order-placed, where: "subject LIKE 'shop-%'"}
    to: {function: invoice}
recipes:
  intents:
    when: {type: new-data, where: "EXISTS dataset AND dataset LIKE 'bots/%'"}
    inputs: {data: "bots/{key}"}
    run: {dir: ., command: ["PROGRAM", ` + demoTrainer + `]}
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.85, metrics.accuracy >= champion.metrics.accuracy]
scorers:
  intents: {from: chat, to: scored, model: "intent/{key}", map: {text: data.text}}
`

// demoRecipe is the config's.
const demoRecipe = "intents"

func demoCommand() command {
	return command{
		name:    "demo",
		summary: "see it all work once, in a folder that goes away again",
		about: `It starts a Kafka, a Redis and the gateway in this process on free ports, publishes
an event of each type that comes from outside and one of a user's own type through
the gateway, shows them arriving at a consumer of Kafka, and shows what becomes of
an event that was published before, and of a record that is no event. Then a
trigger has a function called, which replies to one event and cannot take another:
that becomes a dead letter, the function is mended, the letter replayed. Then three
bots get data, and a model is trained and judged for each: one is refused, for its data
is bad. New data retrains one; a worse model is refused against its champion; a champion
is rolled back; and it is told where a model comes from. At last people talk to the bots,
thousands of messages a second, and each is answered by its bot's champion, while another
becomes the champion; and it is told why one answer is as it is. The exit status is 1 if
anything did not come as it has to.`,
		examples: []example{{"tidemill demo", "takes some twenty seconds and leaves nothing behind"}},
		make:     func() program { return &demo{} },
	}
}

type demo struct{}

func (*demo) flags(*flagSet) {}

func (*demo) accept(positional []string) error { return wants(positional) }

func (*demo) run(interrupted context.Context, s *session, _ []string) (err error) {
	ctx, cancel := context.WithTimeout(interrupted, demoWithin)
	defer cancel()
	folder, err := os.MkdirTemp("", "tidemill-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	books := &taxes{percent: map[string]float64{"shop-1": 7}}
	p, err := openDemo(ctx, s, folder, books)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, closePlatform(ctx, p)) }()
	err = throughDoor(ctx, p, func(door *remote.Gateway) error { return playDemo(ctx, p, door, books, folder, s.stdout) })
	switch {
	case interrupted.Err() != nil:
		return errors.New("demo: interrupted")
	case err != nil:
		return fmt.Errorf("demo: %w; that must not happen: please report it", err)
	}
	return nil
}

func openDemo(ctx context.Context, s *session, folder string, books *taxes) (*platform.Platform, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	conf, err := config.Parse("demo", []byte(strings.ReplaceAll(demoConfig, "PROGRAM", filepath.ToSlash(self))))
	if err != nil {
		return nil, err
	}
	log := telemetry.Logger(s.stderr, slog.LevelError+1) // what fails here fails on purpose, or ends the demo
	p, err := platform.Open(ctx, platform.Options{Config: conf, Embedded: &embedded.Options{Dir: folder}, OwnStreams: true,
		Functions: map[string]functions.Func{demoFunction: books.invoice},
		Runs:      &platform.RunsOptions{Recipes: folder, Data: filepath.Join(folder, "runs"), Launch: true},
		Telemetry: telemetryOf(s, "tidemill-demo"), Logger: log})
	if err != nil {
		return nil, err
	}
	if err := begin(ctx, p, log); err != nil {
		return nil, errors.Join(err, closePlatform(ctx, p))
	}
	return p, nil
}

// throughDoor opens the gateway and gives a client of it to play with.
func throughDoor(ctx context.Context, p *platform.Platform, play func(*remote.Gateway) error) error {
	flags := doorFlags{listen: "127.0.0.1:0"}
	g, err := flags.open(ctx, p)
	if err != nil {
		return err
	}
	serving, left := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- serve(serving, g) }()
	defer left()
	door, err := remote.Dial(ctx, remote.Options{URL: flags.url(g)})
	if err != nil {
		return err
	}
	defer door.Close()
	err = play(door)
	left()
	return errors.Join(err, <-served)
}

func playDemo(ctx context.Context, p *platform.Platform, door *remote.Gateway, books *taxes, folder string, out io.Writer) error {
	streams := []string{tidemill.StreamEvents, "messages"}
	reader, err := openDemoReader(ctx, p, streams)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Tidemill's demo: Kafka (%s), Redis (%s) and the gateway run in this\nprocess, on a folder that goes away again.\n\n", p.Addresses().Kafka, p.Addresses().Redis)
	fmt.Fprintf(out, "An event of each type from outside and of one of yours, published to %s\nand read from Kafka by a consumer group:\n", door.URL())
	latencies, err := playEvents(ctx, door, reader, out)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe first of them once more, as after an answer that was lost:")
	if err := playRepeat(ctx, door, reader, out); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nA record that is no event, as any program may write one:")
	if err := playPoison(ctx, p, reader, out); err != nil {
		return err
	}
	if err := playTriggers(ctx, door, books, out); err != nil {
		return err
	}
	if err := playModels(ctx, door, folder, out); err != nil {
		return err
	}
	if err := playScores(ctx, p, door, out); err != nil {
		return err
	}
	slices.Sort(latencies)
	fmt.Fprintf(out, "\n%d of %d events arrived, each once, after %s in the median; the record that is none lies in\nthe dead letters with its reason and its bytes. Nothing was lost.\n\nNext: %s up\n",
		len(latencies), len(latencies), milliseconds(latencies[len(latencies)/2]), calledAs(os.Args[0]))
	return nil
}

// calledAs is how this program is called again. That which go run has built is
// gone by then.
func calledAs(name string) string {
	if strings.Contains(filepath.ToSlash(name), "/go-build") {
		return "make build && bin/tidemill"
	}
	return name
}

// demoEvents are an event of each type from outside that the catalogue knows,
// and one of a type that only the config's stream knows.
func demoEvents() []broker.View {
	data := map[string]string{
		tidemill.TypeNewData:      `{"uri": "s3://bots/42/examples.csv", "bytes": 81920}`,
		tidemill.TypeScheduleTick: `{"scheduled": "2026-01-31T03:00:00+01:00", "missed": 0}`,
		"message":                 `{"text": "where is my parcel?"}`,
	}
	types := []string{}
	for _, e := range tidemill.Catalogue() {
		if !e.Ours {
			types = append(types, e.Type)
		}
	}
	var all []broker.View
	for _, typ := range append(types, "message") {
		v := broker.View{ID: tidemill.ID("demo", typ), Source: "/demo", Type: typ, Subject: "bot-42", DataSchema: tidemill.Schema(typ)}
		if d, ok := data[typ]; ok {
			v.Data, v.DataContentType = []byte(d), jsonType
		}
		all = append(all, v)
	}
	return all
}

// playEvents publishes each event, waits until the consumer has it, and says
// what the door answered and how long it took.
func playEvents(ctx context.Context, door *remote.Gateway, r *demoReader, out io.Writer) ([]time.Duration, error) {
	var latencies []time.Duration
	for _, v := range demoEvents() {
		sent := time.Now()
		v.Time = sent.UTC().Format(time.RFC3339Nano)
		receipt, err := door.Publish(ctx, "", &v)
		if err != nil {
			return nil, err
		}
		got, err := r.next(ctx)
		if err != nil {
			return nil, fmt.Errorf("event %s did not arrive from %s: %w", v.Type, receipt.Stream, err)
		}
		if got.id != v.ID || got.at != receipt.Position() {
			return nil, fmt.Errorf("event %s was published and %s arrived", v.Type, got.typ)
		}
		latencies = append(latencies, got.when.Sub(sent))
		fmt.Fprintf(out, "  %-14s %-7s 202, %-34s %8s\n", got.typ, got.subject, place(receipt.Stream, receipt.Partition, receipt.Offset), milliseconds(got.when.Sub(sent)))
	}
	return latencies, nil
}

// playRepeat publishes an event that is there. A machine that is so busy that
// its Redis does not answer in time stores it again, which is no fault: readers
// know it by its id.
func playRepeat(ctx context.Context, door *remote.Gateway, r *demoReader, out io.Writer) error {
	v := demoEvents()[0]
	receipt, err := door.Publish(ctx, "", &v)
	if err != nil {
		return err
	}
	became := "it was here before: nothing was stored"
	if !receipt.Repeated {
		if _, err := r.next(ctx); err != nil {
			return err
		}
		became = "stored again, for Redis did not answer in time; its id tells"
	}
	_, err = fmt.Fprintf(out, "  %-14s %-7s 202, %s\n", v.Type, v.Subject, became)
	return err
}
