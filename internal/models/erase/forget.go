package erase

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/deadletters"
)

// Options configure a Forgetter.
type Options struct {
	Broker    *broker.Broker
	Producer  *broker.Producer
	Names     tidemill.Names
	Config    func() *config.Config
	Ledger    *ledger.Ledger
	Store     *store.Store
	Foreman   *scheduler.Foreman
	Registrar *registry.Registrar
	// Letters opens the book of dead letters, or returns the one that is open.
	Letters func(context.Context) (*deadletters.Book, error)
	Grace   time.Duration // grace period of the store; 0 means its default
	// Patience is how long one call waits for a live attempt; 0 means 20 s.
	Patience time.Duration
	// Watch is called before each step: tests end the work there. It may be nil.
	Watch  func(step string)
	Logger *slog.Logger
}

const defaultPatience = 20 * time.Second

// Forgetter forgets keys. Several may work on one key at once, because the ids of all their facts
// derive from the fact that asked.
type Forgetter struct {
	o   Options
	now func() time.Time
}

// New returns a Forgetter.
func New(o Options) (*Forgetter, error) {
	switch {
	case o.Broker == nil || o.Producer == nil || o.Config == nil || o.Letters == nil:
		return nil, errors.New("start the forgetter: it needs a broker, a producer, a config and the dead letters")
	case o.Ledger == nil || o.Store == nil || o.Foreman == nil || o.Registrar == nil:
		return nil, errors.New("make what forgets keys: it needs a ledger, a store, a foreman and a registrar")
	}
	if o.Grace == 0 {
		o.Grace = store.DefaultGrace
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Forgetter{o: o, now: time.Now}, nil
}

// ErrLive reports that an attempt of the key is still live. ErrLive is temporary, because the
// attempt's cancellation was requested.
var ErrLive = errors.New("an attempt of the key is still ending")

// ErrUnknown reports that no such forgetting is known.
var ErrUnknown = errors.New("no such forgetting is known")

// ErrKey reports that a text cannot be a key.
var ErrKey = scheduler.ErrKey

// ErrCatchingUp reports that the ledger does not know all facts yet. It is temporary.
var ErrCatchingUp = ledger.ErrCatchingUp

// Forget does the work that a fact tidemill.key.forgetting asks for, and returns the receipt. If it
// was stopped anywhere, another call continues. Once the receipt is on the log, a call does
// nothing. The error is ErrLive while an attempt takes its time to end.
func (f *Forgetter) Forget(ctx context.Context, o Order) (tidemill.KeyForgotten, error) {
	r, err := f.forget(ctx, o)
	if errors.Is(err, errSlow) {
		return f.forget(ctx, o) // the receipt exists, or only the receipt is missing
	}
	return r, err
}

func (f *Forgetter) forget(ctx context.Context, o Order) (tidemill.KeyForgotten, error) {
	n, err := f.note(ctx, o)
	if err == nil && n.Receipt != nil {
		return f.receiptAt(ctx, *n.Receipt)
	}
	for _, s := range f.steps(n) {
		if err != nil {
			return tidemill.KeyForgotten{}, err
		}
		if f.o.Watch != nil {
			f.o.Watch(s.name)
		}
		if err = f.stillOurs(ctx, n); err == nil {
			err = s.do(ctx, &o, n)
		}
		if err != nil {
			err = fmt.Errorf("forget key %s: %w", o.Key, err)
		}
	}
	if err != nil {
		return tidemill.KeyForgotten{}, err
	}
	f.o.Logger.Info("dispatcher: a key is forgotten", "key", o.Key, "by", o.By, "reason", o.Reason)
	return n.KeyForgotten, nil
}

type step struct {
	name string
	do   func(context.Context, *Order, *note) error
}

// steps returns the steps. Each source is removed before its results, because it would make them
// again: events wake functions, functions ask for runs, runs write models, data and logs. Once
// everything is removed, only the receipt is left.
func (f *Forgetter) steps(n *note) []step {
	all := []step{
		{"pass", f.publishPass},
		{"note", f.noteAll},
		{"runs", f.endRuns},
		{"live", f.awaitEnd},
		{"note again", f.noteMade},
		{"models", f.retireModels},
		{"datasets", f.removeDatasets},
		{"logs", f.removeLogs},
		{"letters", func(ctx context.Context, _ *Order, n *note) error { return f.dropLetters(ctx, n) }},
		{"taken", f.noteRemoved},
		{"receipt", f.publishReceipt},
	}
	if n != nil && n.Taken {
		return all[len(all)-1:]
	}
	return all
}

// noteRemoved notes that everything is removed, before the receipt is published. After the receipt
// users may begin the key again. If this process then crashes, the next one must not remove the new
// data.
func (f *Forgetter) noteRemoved(ctx context.Context, _ *Order, n *note) error {
	n.Taken = true
	return f.save(ctx, n)
}

func (f *Forgetter) noteAll(ctx context.Context, _ *Order, n *note) error {
	if err := f.survey(ctx, n); err != nil {
		return err
	}
	return f.save(ctx, n)
}

// noteMade notes the results that the last attempts have written while they were ending.
func (f *Forgetter) noteMade(ctx context.Context, _ *Order, n *note) error {
	b := belongingsOf(f.o.Config(), n.Key)
	if err := f.surveyMade(ctx, n, &b); err != nil {
		return err
	}
	return f.save(ctx, n)
}

// publishPass publishes that no event of the key that is on the log by now is delivered any more.
// It saves the ends of the streams first, so that after a crash it publishes the same ends.
func (f *Forgetter) publishPass(ctx context.Context, o *Order, n *note) (err error) {
	if n.Passed {
		return nil
	}
	if n.Ends == nil {
		if n.Ends, n.Topics, err = f.streamEnds(ctx); err == nil {
			err = f.save(ctx, n)
		}
	}
	if err != nil {
		return err
	}
	data, err := json.Marshal(tidemill.KeyPassedData{Ends: n.Ends, Topics: n.Topics})
	if err != nil {
		return err
	}
	v := o.fact(f.o.Names, tidemill.TypeKeyPassed, tidemill.ID("passed", o.ID), o.cause(), data, f.now())
	if _, err := f.o.Producer.Publish(ctx, tidemill.StreamCommands, &v); err != nil {
		return fmt.Errorf("say that its events are not delivered any more: %w", err)
	}
	n.Passed = true
	return f.save(ctx, n)
}

// streamEnds returns the ends of the streams whose events are delivered, and of answers that wait for labels,
// with the ids of their topics.
func (f *Forgetter) streamEnds(ctx context.Context) (all map[string][]int64, topics map[string]string, err error) {
	all, topics = map[string][]int64{}, map[string]string{}
	c := f.o.Config()
	var streams []string
	for _, parked := range c.Parked() {
		stream, _ := tidemill.CutParked(parked.Name)
		streams = append(streams, stream)
	}
	for _, s := range c.Scorers {
		if s.Labels != nil {
			streams = append(streams, s.To)
		}
	}
	for _, stream := range streams {
		id, err := f.o.Broker.TopicID(ctx, stream)
		if err != nil {
			return nil, nil, err
		}
		ends, err := f.o.Broker.Ends(ctx, stream)
		if err != nil {
			return nil, nil, fmt.Errorf("find where stream %s ends: %w", stream, err)
		}
		now, err := f.o.Broker.TopicID(ctx, stream)
		if err == nil && now != id {
			err = fmt.Errorf("stream %s was created again just now: try again", stream)
		}
		if err != nil {
			return nil, nil, err
		}
		topics[stream] = id
		all[stream] = make([]int64, len(ends))
		for _, e := range ends {
			all[stream][e.Partition] = e.Offset
		}
	}
	return all, topics, nil
}

// endRuns ends the runs of each recipe for the key, once. A second time would end runs of the key's
// next life.
func (f *Forgetter) endRuns(ctx context.Context, o *Order, n *note) error {
	for i := range n.Runs {
		r := &n.Runs[i]
		if r.At != unknownMark {
			continue
		}
		at, m, err := f.o.Foreman.Forget(ctx, scheduler.Forgetting{Recipe: r.Recipe, Key: o.Key, By: o.By, Reason: n.reasonText(), Cause: o.cause(),
			Correlation: o.Correlation, Trace: o.Trace})
		if err != nil {
			return err
		}
		r.At = at
		if m.Live != nil {
			n.addRun(r.Recipe, m.Live.ID)
			if n.Live == nil {
				n.Live = map[string]string{}
			}
			n.Live[r.Recipe] = m.Live.ID
		}
		if err := f.save(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// awaitEnd waits until no attempt of the key is live. If that takes longer than Patience, the
// redelivered event checks again.
func (f *Forgetter) awaitEnd(ctx context.Context, o *Order, n *note) error {
	patience, cancel := context.WithTimeoutCause(ctx, f.o.Patience, ErrLive)
	defer cancel()
	for recipe, run := range n.Live {
		if err := f.awaitRun(ctx, patience, recipe, o.Key, run); err != nil {
			return err
		}
	}
	return nil
}

// awaitRun waits until a run has ended. patience limits the wait alone: the ledger is asked at
// least once, and its answer may take longer.
func (f *Forgetter) awaitRun(ctx, patience context.Context, recipe, key, run string) error {
	for {
		changed := f.o.Ledger.Changed()
		m, err := f.o.Ledger.Making(ctx, recipe, key)
		if err != nil || m.Live == nil || m.Live.ID != run {
			return err
		}
		select {
		case <-changed:
		case <-patience.Done():
			return fmt.Errorf("run %s of recipe %s: %w", run, recipe, context.Cause(patience))
		}
	}
}

// retireModels retires the models. The marks keep out versions that earlier runs still have to
// register.
func (f *Forgetter) retireModels(ctx context.Context, o *Order, n *note) error {
	for _, m := range n.Models {
		if err := f.o.Registrar.Retire(ctx, m.Model, o.Key, o.By, n.reasonText(), o.cause(), n.Asked, n.marks()); err != nil {
			return fmt.Errorf("retire model %s: %w", m.Model, err)
		}
	}
	return nil
}

func (f *Forgetter) removeDatasets(ctx context.Context, _ *Order, n *note) error {
	for _, d := range n.Datasets {
		if _, err := f.o.Store.RemoveDataset(ctx, d.Dataset); err != nil {
			return err
		}
	}
	return nil
}

func (f *Forgetter) removeLogs(ctx context.Context, _ *Order, n *note) error {
	for i := range n.Runs {
		for _, run := range n.Runs[i].Runs {
			if err := cmp.Or(f.o.Store.RemoveRun(ctx, run), f.o.Ledger.ForgetPoints(ctx, run)); err != nil {
				return err
			}
		}
	}
	return nil
}

// publishReceipt publishes the receipt. Then it keeps only the receipt's position in the note, so
// that the note holds nothing of the key.
func (f *Forgetter) publishReceipt(ctx context.Context, o *Order, n *note) error {
	now := f.now()
	n.Remains = remainingPlaces(f.o.Config(), &n.KeyForgotten, f.o.Grace, now)
	data, err := json.Marshal(n.KeyForgotten)
	if err != nil {
		return err
	}
	v := o.fact(f.o.Names, tidemill.TypeKeyForgotten, tidemill.ID("receipt", o.ID), o.cause(), data, now)
	at, err := f.o.Producer.Publish(ctx, tidemill.StreamFacts, &v)
	if err != nil {
		return fmt.Errorf("put the receipt on the log: %w", err)
	}
	if at.Offset < 0 {
		return errors.New("put the receipt on the log: Kafka stored it and returned no offset; it is published again")
	}
	return f.save(ctx, &note{KeyForgotten: tidemill.KeyForgotten{Forgetting: n.Forgetting}, Receipt: &tidemill.Mark{Partition: at.Partition, Offset: at.Offset}})
}

// State is the progress of a forgetting.
type State struct {
	Done    bool
	Receipt tidemill.KeyForgotten // incomplete until Done
}

// State returns the progress of a forgetting. A forgetting has no progress before its function has
// begun.
func (f *Forgetter) State(ctx context.Context, id string) (State, error) {
	n, err := f.readNote(ctx, id)
	if err != nil || n.Receipt == nil {
		return State{Receipt: receiptOf(n)}, err
	}
	r, err := f.receiptAt(ctx, *n.Receipt)
	return State{Done: true, Receipt: r}, err
}

func receiptOf(n *note) tidemill.KeyForgotten {
	if n == nil {
		return tidemill.KeyForgotten{}
	}
	return n.KeyForgotten
}

// readReceipt is the size of the read in bytes; the smallest read returns a whole record.
const readReceipt = 1

// receiptAt reads the receipt at a position.
func (f *Forgetter) receiptAt(ctx context.Context, at tidemill.Mark) (r tidemill.KeyForgotten, err error) {
	err = errors.New("it is not where it was put")
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: at.Partition, Offset: at.Offset}
	_, failed := f.o.Broker.Read(ctx, from, readReceipt, func(e *broker.Incoming) bool {
		if e.Offset == at.Offset && e.Type == tidemill.TypeKeyForgotten {
			err = json.Unmarshal(e.Data, &r)
		}
		return e.Offset < at.Offset
	})
	if failed != nil {
		err = failed
	}
	if err != nil {
		return r, fmt.Errorf("read the receipt at partition %d, offset %d of stream %s: %w", at.Partition, at.Offset, tidemill.StreamFacts, err)
	}
	return r, nil
}

// component is the component in the source of our facts.
const component = "forget"

// Ask is a request to forget a key.
type Ask struct {
	Key, By, Reason string
	Cause           tidemill.Cause // event, or the name of a person's request; the same cause is the same request
	Component       string         // component that received the request; empty for the function
	Correlation     string
	Trace           string // traceparent
}

// Ask publishes the request, and returns its id. The key ends at this fact: later requests begin
// the key again.
func (f *Forgetter) Ask(ctx context.Context, a Ask) (string, error) {
	if err := scheduler.CheckKey(a.Key); err != nil {
		return "", fmt.Errorf("ask to forget a key: %w", err)
	}
	data, err := json.Marshal(tidemill.KeyForgetting{Reason: a.Reason})
	if err != nil {
		return "", err
	}
	from := a.Component
	if from == "" {
		from = component
	}
	o := Order{ID: tidemill.ID("forgetting", a.Key, a.Cause.Source, a.Cause.ID), Key: a.Key, By: a.By, Correlation: a.Correlation, Trace: a.Trace}
	v := o.fact(f.o.Names, tidemill.TypeKeyForgetting, o.ID, a.Cause, data, f.now())
	v.Source = f.o.Names.Source(from)
	if _, err := f.o.Producer.Publish(ctx, tidemill.StreamFacts, &v); err != nil {
		return "", fmt.Errorf("ask to forget key %s: %w", a.Key, err)
	}
	return o.ID, nil
}

// Order is a fact tidemill.key.forgetting, as the function receives it.
type Order struct {
	ID, Source      string
	Key, By, Reason string
	At              time.Time
	Correlation     string
	Trace           string
}

func (o *Order) cause() tidemill.Cause { return tidemill.Cause{Source: o.Source, ID: o.ID} }

// fact returns an event about the key that another event has caused.
func (o *Order) fact(names tidemill.Names, typ, id string, cause tidemill.Cause, data []byte, now time.Time) broker.View {
	v := broker.View{ID: id, Source: names.Source(component), Type: typ, Subject: o.Key, Time: now.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(typ), DataContentType: "application/json", Data: data}
	chain := o.Correlation
	if chain == "" {
		chain = id
	}
	for _, x := range []broker.Attribute{
		{Name: tidemill.AttrCausationID, Value: cause.ID}, {Name: tidemill.AttrCausationSource, Value: cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: chain}, {Name: tidemill.AttrTraceParent, Value: o.Trace},
		{Name: tidemill.AttrAuthID, Value: o.By},
	} {
		if x.Value != "" {
			v.Extensions = append(v.Extensions, x)
		}
	}
	return v
}
