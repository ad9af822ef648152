package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/drawing"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/remote"
)

const (
	demoTalk  = 5 * time.Second         // for so long people talk at the least
	demoPace  = 2 * time.Millisecond    // between two handfuls of messages
	demoAtOne = 8                       // messages in a handful: some thousands a second
	demoSwap  = 2500 * time.Millisecond // into it
	demoModel = "intent/bot-1"          // whose champion changes
)

// demoTalkers are the bots that have a champion.
var demoTalkers = [...]string{"bot-1", "bot-2"}

// playScores has people talk to the bots while a champion changes, and checks that
// each message has one answer, in the order of its bot, by no version that was
// champion no more.
func playScores(ctx context.Context, p *platform.Platform, door *remote.Gateway, out io.Writer) error {
	fmt.Fprintln(out, "\nPeople talk to the bots. Each message is answered by its bot's champion, exactly once; meanwhile\nversion 2 of "+demoModel+" becomes the champion again:")
	reader, err := p.Consumer(ctx, broker.ConsumerOptions{Streams: []string{"scored"}})
	if err != nil {
		return err
	}
	began := time.Now()
	heard := newDemoHearing()
	talk := &demoTalking{until: heard.over, sent: make(chan struct{})}
	going, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	both := make(chan error, 2)
	for _, do := range []func() error{
		func() error { return talk.run(going, p) },
		func() error { return heard.swap(going, door, began.Add(demoSwap)) },
	} {
		go func() {
			err := do()
			if err != nil {
				giveUp(err) // what the other waits for may never come
			}
			both <- err
		}()
	}
	err = heard.listen(going, reader, talk, began, out)
	if err != nil {
		return errors.Join(err, reader.Close(context.WithoutCancel(ctx)))
	}
	if err := errors.Join(<-both, <-both, reader.Close(ctx)); err != nil {
		return err
	}
	if err := heard.verdict(talk.count, out); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nWhy was message %s, the first by version 2, answered as it was?\n", heard.first)
	g, err := door.Why(ctx, "event/"+heard.first)
	if err != nil {
		return err
	}
	return drawing.Tree(indenter{out}, shortGraph(&g), seconds)
}

// shortGraph is the answer with its input and its version: the version's own story
// has been told.
func shortGraph(g *api.Graph) *api.Graph {
	short := api.Graph{Subject: g.Subject, Nodes: g.Nodes[:1:1]}
	keep := map[string]bool{g.Subject: true}
	for _, e := range g.Edges {
		if e.To == g.Subject {
			keep[e.From] = true
			short.Edges = append(short.Edges, e)
		}
	}
	for _, e := range g.Edges { // and what made the version
		if keep[e.To] && e.What == api.EdgeMade && !keep[e.From] {
			keep[e.From] = true
			short.Edges = append(short.Edges, e)
		}
	}
	for _, n := range g.Nodes[1:] {
		if keep[n.ID] {
			short.Nodes = append(short.Nodes, n)
		}
	}
	return &short
}

// demoTalking is what people say. They talk until the new version has answered,
// however long a busy machine takes to load it.
type demoTalking struct {
	until <-chan struct{}
	count int           // of the messages that are on the stream; to be read when sent is closed
	sent  chan struct{} // closed when they have stopped
}

func (t *demoTalking) run(ctx context.Context, p *platform.Platform) (err error) {
	defer close(t.sent)
	producer, err := p.Broker().Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, producer.Close(context.WithoutCancel(ctx))) }()
	failed := make(chan error, 1)
	done := func(_ broker.Receipt, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	if err := t.talk(ctx, producer, done); err != nil {
		return err
	}
	if err := producer.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("say something: %w", err)
	default:
		return nil
	}
}

// talk says something every few milliseconds, for as long as it has to.
func (t *demoTalking) talk(ctx context.Context, producer *broker.Producer, done func(broker.Receipt, error)) error {
	tick, least := time.NewTicker(demoPace), time.After(demoTalk)
	defer tick.Stop()
	var until <-chan struct{}
	for {
		select {
		case <-tick.C:
			for range demoAtOne {
				producer.Send(ctx, "chat", demoMessage(t.count), done)
				t.count++
			}
		case <-least:
			until = t.until
		case <-until:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// demoMessage is the nth thing that is said. When it is said travels on to the
// answer as the name of the chain.
func demoMessage(n int) *broker.View {
	intents := [...]string{"track", "refund", "greet"}
	words := demoPhrases[intents[n%3]]
	text := strings.TrimSpace(words[0][n%4] + " " + words[1][n/4%4] + " " + words[2][n/16%4])
	return &broker.View{ID: strconv.Itoa(n), Source: "/demo/chat", Type: "said", Subject: demoTalkers[n/3%2], DataContentType: jsonType,
		Time: time.Now().UTC().Format(time.RFC3339Nano), Data: []byte(`{"text":"` + text + `"}`),
		Extensions: []broker.Attribute{{Name: tidemill.AttrCorrelationID, Value: strconv.FormatInt(time.Now().UnixNano(), 10)}}}
}
