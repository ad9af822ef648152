package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/platform"
	"tidemill.dev/triggers/filter"
)

// Target is where the commands publish and read: a gateway, or Kafka itself. An empty stream means
// the stream that the event's type belongs to.
type Target interface {
	Worry() show.Worry // warnings about missing answers

	Publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error)
	// Send publishes one of many events. It copies the event. It calls done once, and done must not
	// block.
	Send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error))
	// Flush waits until all sent events have an answer.
	Flush(ctx context.Context) error

	// Follow calls each with the matching events of a stream, until each returns an error or the
	// stream ends. It returns that error.
	Follow(ctx context.Context, o Following, each func(*follow.Event) error) error
	Streams(ctx context.Context) ([]api.Stream, error)

	Close(ctx context.Context) error
}

// Following says what to read.
type Following struct {
	Stream string
	Start  broker.Start
	ToEnd  bool
	Where  *filter.Filter // nil matches every event
	Limit  int            // largest useful number of events, as a hint; 0 is no limit
	Begun  func()         // called when reading has begun
}

// wants reports whether a tail shows an event. A record that is not an event is always shown.
func (o *Following) wants(e *follow.Event) bool {
	return o.Where == nil || e.Err != nil || o.Where.Match(&e.View)
}

// gatewayTarget publishes and reads through a gateway.
type gatewayTarget struct {
	g   *client.Gateway
	out io.Writer // output for messages to the user

	mu       sync.Mutex
	batchers map[string]*client.Batcher // batchers of send, by stream
}

func (t *gatewayTarget) Worry() show.Worry {
	return show.Worry{Who: "the gateway", Trouble: t.g.Trouble}
}

// worrying prints a warning while no answer comes.
func (t *gatewayTarget) worrying(what string) (stop func()) {
	w := t.Worry()
	return w.Watch(t.out, what)
}

const asked = "retrying for up to 10 seconds"

func (t *gatewayTarget) Publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error) {
	defer t.worrying("sending the event; retrying for up to 2 minutes")()
	return t.g.Publish(ctx, stream, v)
}

func (t *gatewayTarget) Send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error)) {
	t.batcher(stream).Send(ctx, v, done)
}

func (t *gatewayTarget) batcher(stream string) *client.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	b, ok := t.batchers[stream]
	if !ok {
		if t.batchers == nil {
			t.batchers = map[string]*client.Batcher{}
		}
		b = t.g.Batcher(stream)
		t.batchers[stream] = b
	}
	return b
}

func (t *gatewayTarget) all() []*client.Batcher {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []*client.Batcher
	for _, b := range t.batchers {
		all = append(all, b)
	}
	return all
}

func (t *gatewayTarget) Flush(ctx context.Context) error {
	var failed []error
	for _, b := range t.all() {
		failed = append(failed, b.Flush(ctx))
	}
	return errors.Join(failed...)
}

func (t *gatewayTarget) Follow(ctx context.Context, o Following, each func(*follow.Event) error) error {
	what := client.TailOptions{Stream: o.Stream, From: o.Start.String(), ToEnd: o.ToEnd, Limit: o.Limit, Away: t.away}
	if o.Where != nil {
		what.Where = o.Where.String()
	}
	stop := t.worrying(asked)
	r, err := t.g.Tail(ctx, what)
	stop()
	if err != nil {
		return err
	}
	defer r.Close()
	o.Begun()
	for {
		batch, err := r.Next(ctx)
		if err == io.EOF { // io.EOF itself is the end; a connection's error wraps it
			return nil
		}
		if err != nil {
			return err
		}
		for i := range batch {
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

// away reports a lost gateway once, and its return once.
func (t *gatewayTarget) away(err error) {
	if err != nil {
		fmt.Fprintf(t.out, "The gateway does not answer; tail continues when it does. Last error: %v\n", err)
		return
	}
	fmt.Fprintln(t.out, "The gateway is back.")
}

func (t *gatewayTarget) Streams(ctx context.Context) ([]api.Stream, error) {
	defer t.worrying(asked)()
	return t.g.Streams(ctx)
}

// Close does not wait for events: the caller has called flush if it wants that.
func (t *gatewayTarget) Close(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for _, b := range t.all() {
		_ = b.Close(ctx) // each unsent event has reported its error already
	}
	t.g.Close()
	return nil
}

const lingerFile = 2 * time.Millisecond // the events of a file come close together, so they share batches

// kafkaTarget publishes and reads on Kafka. It chooses the stream by the local config, as a gateway
// does by its own.
type kafkaTarget struct {
	p   *platform.Platform
	out io.Writer // output for messages to the user

	once     sync.Once
	producer *broker.Producer // producer of send
	failed   error
}

func (*kafkaTarget) Worry() show.Worry {
	return show.Worry{Who: "Kafka", Trouble: func() error { return nil }} // Kafka's client does not report errors that it retries
}

func (k *kafkaTarget) Publish(ctx context.Context, stream string, v *broker.View) (client.Receipt, error) {
	producer, err := k.p.Producer(broker.ProducerOptions{})
	if err != nil {
		return client.Receipt{}, err
	}
	r, err := producer.Publish(ctx, k.home(stream, v), v)
	return client.Receipt{Receipt: r}, err
}

func (k *kafkaTarget) Send(ctx context.Context, stream string, v *broker.View, done func(client.Receipt, error)) {
	k.once.Do(func() {
		k.producer, k.failed = k.p.Producer(broker.ProducerOptions{Linger: lingerFile, Compression: broker.LZ4})
	})
	if k.failed != nil {
		done(client.Receipt{}, k.failed)
		return
	}
	k.producer.Send(ctx, k.home(stream, v), v, func(r broker.Receipt, err error) { done(client.Receipt{Receipt: r}, err) })
}

func (k *kafkaTarget) home(stream string, v *broker.View) string {
	if stream == "" {
		return k.p.Config().StreamFor(v.Type)
	}
	return stream
}

func (k *kafkaTarget) Flush(ctx context.Context) error {
	if k.producer == nil {
		return nil
	}
	return k.producer.Flush(ctx)
}

func (k *kafkaTarget) Follow(ctx context.Context, o Following, each func(*follow.Event) error) (err error) {
	r, err := follow.OpenReader(ctx, k.p.Broker(), follow.ReaderOptions{Stream: o.Stream, Start: o.Start, ToEnd: o.ToEnd})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	o.Begun()
	away := &absence{out: k.out, ping: k.p.Broker().Ping, looked: time.Now()}
	for {
		batch, err := r.Next(ctx)
		switch {
		case err == io.EOF: // io.EOF itself is the end; a connection's error wraps it
			return nil
		case err != nil:
			return err
		case len(batch) == 0:
			away.look(ctx)
		}
		for i := range batch {
			if !o.wants(&batch[i]) {
				continue
			}
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

func (k *kafkaTarget) Streams(ctx context.Context) ([]api.Stream, error) {
	infos, err := k.p.Broker().Streams(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]api.Stream, 0, len(infos))
	for i := range infos {
		all = append(all, gateway.StreamOf(&infos[i]))
	}
	return all, nil
}

func (k *kafkaTarget) Close(ctx context.Context) error { return ClosePlatform(ctx, k.p) }

// lookForKafka is how often a tail without events checks that Kafka answers.
const lookForKafka = 5 * time.Second

// pingWithin limits the wait for an answer of Kafka.
const pingWithin = 3 * time.Second

// absence tells an idle stream from a Kafka that does not answer. The consumer would wait for ever
// without a message.
type absence struct {
	out  io.Writer
	ping func(context.Context) error
	told bool

	looked time.Time
}

// look reports a lost Kafka once, and its return once.
func (a *absence) look(ctx context.Context) {
	if time.Since(a.looked) < lookForKafka {
		return
	}
	defer func() { a.looked = time.Now() }()
	limited, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	err := a.ping(limited)
	switch {
	case ctx.Err() != nil || (err != nil) == a.told:
		return
	case err != nil:
		fmt.Fprintf(a.out, "Kafka does not answer; tail continues when it does. Last error: %v\n", err)
	default:
		fmt.Fprintln(a.out, "Kafka is back.")
	}
	a.told = err != nil
}

// completed limits the number of names that completion asks for.
const completed = 500

// lister lists names that the gateway knows.
type lister func(ctx context.Context, g *client.Gateway, prefix string) ([]string, error)

// listers returns the lister of each kind of argument.
func listers() map[string]lister {
	return map[string]lister{
		"streams": streamNames, "triggers": triggerNames, "schedules": scheduleNames, "recipes": recipeNames, "pools": poolNames,
		"scorers": scorerNames, "datasets": datasetNames, "models": modelNames, "keys": keyNames, "runs": runNames, "things": thingNames,
	}
}

// namesOf returns the name of each item.
func namesOf[T any](all []T, name func(*T) string) []string {
	names := make([]string, len(all))
	for i := range all {
		names[i] = name(&all[i])
	}
	return names
}

func streamNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Streams(ctx)
	return namesOf(all, func(s *api.Stream) string { return s.Name }), err
}

func triggerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Triggers(ctx)
	return namesOf(all.Triggers, func(t *api.Trigger) string { return t.Name }), err
}

func scheduleNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Schedules(ctx)
	return namesOf(all.Schedules, func(s *api.Schedule) string { return s.Name }), err
}

func recipeNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Recipes(ctx)
	return namesOf(all.Recipes, func(r *api.Recipe) string { return r.Name }), err
}

func poolNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Pools(ctx)
	return namesOf(all.Pools, func(p *api.Pool) string { return p.Name }), err
}

func scorerNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	all, err := g.Scorers(ctx)
	return namesOf(all.Scorers, func(s *api.Scorer) string { return s.Name }), err
}

func datasetNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	all, err := g.Datasets(ctx, prefix)
	return namesOf(all.Datasets, func(d *api.Dataset) string { return d.Name }), err
}

// modelNames returns the names of models, or the versions of one if the prefix has an @.
func modelNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	if at := strings.LastIndexByte(prefix, '@'); at >= 0 {
		model := prefix[:at]
		whole, err := g.Model(ctx, model, "")
		if err != nil {
			return nil, err
		}
		names := []string{model + "@newest"}
		if whole.Champion != 0 {
			names = append(names, model+"@champion")
		}
		if whole.Previous != 0 {
			names = append(names, model+"@previous")
		}
		return append(names, namesOf(whole.All, func(v *api.ModelVersion) string { return model + "@" + strconv.Itoa(v.Number) })...), nil
	}
	all, err := g.Models(ctx, client.ModelQuery{Prefix: prefix, Limit: completed})
	return namesOf(all.Models, func(m *api.ModelShown) string { return m.Name }), err
}

func runNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	page, err := g.Runs(ctx, client.RunQuery{Limit: completed})
	return namesOf(page.Runs, func(r *api.RunShown) string { return r.ID }), err
}

// keyNames returns the keys of models, and those that have only runs. If the runs cannot be listed,
// the keys of models are enough.
func keyNames(ctx context.Context, g *client.Gateway, _ string) ([]string, error) {
	models, err := g.Models(ctx, client.ModelQuery{Limit: completed})
	runs, _ := g.Runs(ctx, client.RunQuery{Limit: completed})
	return append(namesOf(models.Models, func(m *api.ModelShown) string { return m.Key }), namesOf(runs.Runs, func(r *api.RunShown) string { return r.Key })...), err
}

// thingNames returns what can be traced: KIND/ID.
func thingNames(ctx context.Context, g *client.Gateway, prefix string) ([]string, error) {
	kind, id, whole := strings.Cut(prefix, "/")
	list := map[string]lister{"model": modelNames, "run": runNames, "commit": datasetNames}[kind]
	if !whole || list == nil {
		return []string{"run/", "model/", "commit/", "event/"}, nil
	}
	names, err := list(ctx, g, id)
	for i := range names {
		names[i] = kind + "/" + names[i]
	}
	return names, err
}

// Names asks the gateway that the command would ask for names of a kind. An error gives no names.
func (r *Reach) Names(ctx context.Context, s *command.Session, kind, prefix string) []string {
	list, known := listers()[kind]
	if !known {
		return nil
	}
	w, err := r.Choose(s.Getenv)
	if err != nil || w.URL == "" {
		return nil
	}
	g, err := r.dial(ctx, s, w, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil
	}
	defer g.Close()
	names, err := list(ctx, g, prefix)
	if err != nil {
		return nil
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	slices.Sort(names)
	return slices.Compact(names)
}
