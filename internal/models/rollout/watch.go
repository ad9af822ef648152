package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
)

// Options configure a Watcher.
type Options struct {
	Broker   *broker.Broker
	Producer *broker.Producer
	Names    tidemill.Names
	Config   func() *config.Config
	Asked    *commands.Follower
	Active   func() bool                                                   // whether this is the active controller; nil means always
	Sign     func(recipe string, w tidemill.Way) tidemill.Way              // adds the MAC of the install
	RollBack func(context.Context, registry.Wish) (registry.Answer, error) // registry.Registrar.Wish
	Skew     time.Duration                                                 // how much older the config of this process may be than that of another
	Board    *status.Rollouts                                              // shows the figures to gateways; may be nil
	Every    time.Duration                                                 // time between looks; 0 is 2 s
	Now      func() time.Time                                              // nil is time.Now
	Logger   *slog.Logger
}

const (
	defaultEvery = 2 * time.Second
	// clocks is how much the clocks of two processes may differ.
	clocks = time.Minute
	// beforeWindow is the least time before a rollout whose outcomes are read, for the versions before it.
	beforeWindow = time.Hour
	readBytes    = 16 << 20
	closeWithin  = 5 * time.Second
)

// Watcher takes the decisions about rollouts. Any number of processes may have one; the log takes each decision once.
type Watcher struct {
	o      Options
	log    *slog.Logger
	now    func() time.Time
	work   map[string]*reading // by recipe: the evidence of its open rollout
	seen   map[string]seenWay  // by recipe: since when the config has its way
	failed map[string]string   // by recipe: error that was logged last
}

// seenWay is the way of a recipe in the config, and when this process first saw it.
type seenWay struct {
	hash  string
	since time.Time
}

// reading is the evidence of a rollout, and how far the streams have been read for it.
type reading struct {
	rollout string
	fresh   time.Time
	*Evidence
	streams []string
	readers []*follow.Reader  // one of each stream
	left    map[string]string // by model: reason why it cannot be rolled back
}

// New returns a Watcher.
func New(o Options) *Watcher {
	if o.Every <= 0 {
		o.Every = defaultEvery
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Active == nil {
		o.Active = func() bool { return true }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{o: o, log: o.Logger, now: o.Now, work: map[string]*reading{}, seen: map[string]seenWay{}, failed: map[string]string{}}
}

// Watch looks at all rollouts until the context ends. A change of the commands is looked at immediately.
func (w *Watcher) Watch(ctx context.Context) {
	defer w.closeAll()
	for ctx.Err() == nil {
		changed := w.o.Asked.Changed()
		if w.o.Active() {
			w.Look(ctx)
		} else {
			w.closeAll()
		}
		wait := time.NewTimer(w.o.Every)
		select {
		case <-wait.C:
		case <-changed:
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// Look takes the decisions that are due. An error of one recipe is logged once and does not stop the others.
func (w *Watcher) Look(ctx context.Context) {
	c := w.o.Config()
	for i := range c.Recipes {
		r := &c.Recipes[i]
		err := w.lookAt(ctx, r)
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != w.failed[r.Name] {
			w.log.Warn("rollout: a look failed; retrying", "recipe", r.Name, "reason", err)
		}
		w.failed[r.Name] = text
	}
	for recipe := range w.work {
		if _, there := c.Recipe(recipe); !there {
			w.drop(recipe)
		}
	}
}

func (w *Watcher) lookAt(ctx context.Context, r *config.Recipe) error {
	state := w.o.Asked.Now().Rollout(r.Name)
	if r.Rollout == nil && (state == nil || state.Base == nil) {
		return nil
	}
	in := Input{Recipe: r, State: state, Now: w.now().UTC(), Settled: w.settled(r)}
	var work *reading
	if state != nil && state.Open() {
		var err error
		if work, err = w.read(ctx, state); err != nil {
			w.drop(r.Name)
			return err
		}
		if state.GoesBack() {
			if err := w.rollBack(ctx, work, state); err != nil {
				return err
			}
		}
		in.Figures, in.Judged = work.Figures(), work.JudgedSince(state.Since)
		in.Left, in.Back = work.remaining()
	} else {
		w.drop(r.Name)
	}
	d, err := Decide(in)
	if err != nil {
		return err
	}
	if work != nil {
		shown := status.Rollout{Rollout: state.Name(), At: in.Now, Wait: d.Wait, Figures: in.Figures, Back: in.Back, Left: len(work.left), Why: work.someLeft()}
		if state.GoesBack() {
			shown.Todo = in.Left
		}
		w.o.Board.Write(ctx, r.Name, shown)
	} else {
		w.o.Board.Write(ctx, r.Name, status.Rollout{At: in.Now, Wait: d.Wait})
	}
	if d.Type == "" {
		return nil
	}
	return w.publish(ctx, r.Name, d)
}

// settled reports whether this process has seen the way of the config for so long that all processes have it.
func (w *Watcher) settled(r *config.Recipe) bool {
	hash := ""
	if r.Rollout != nil {
		hash = r.Way().Hash
	}
	s, known := w.seen[r.Name]
	if !known || s.hash != hash {
		s = seenWay{hash, w.now()}
		w.seen[r.Name] = s
	}
	return w.now().Sub(s.since) >= w.o.Skew
}

// publish writes a decision, and waits until this process has folded it: the next look decides by the state after it.
func (w *Watcher) publish(ctx context.Context, recipe string, d Decision) error {
	if d.Data.Way != nil {
		signed := w.o.Sign(recipe, *d.Data.Way)
		d.Data.Way = &signed
	}
	v, err := commands.RolloutFact(w.o.Names, d.Type, recipe, d.Data, w.now())
	if err != nil {
		return err
	}
	at, err := commands.Publish(ctx, w.o.Producer, &v)
	if err != nil {
		return fmt.Errorf("publish %s of recipe %s: %w", d.Type, recipe, err)
	}
	w.log.Info("rollout: "+what(d), "recipe", recipe, "rollout", d.Data.Rollout, "reason", d.Data.Reason)
	for {
		changed := w.o.Asked.Changed()
		if w.o.Asked.Now().Next() > at.Offset {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// what describes a decision for the log.
func what(d Decision) string {
	switch d.Type {
	case tidemill.TypeRolloutBegun:
		return fmt.Sprintf("a changed recipe reaches %g%% of its keys", 100*d.Data.Share)
	case tidemill.TypeRolloutAdvanced:
		return fmt.Sprintf("the change reaches %g%% of the keys", 100*d.Data.Share)
	case tidemill.TypeRolloutStopped:
		return "a rollout has stopped; its keys are rolled back"
	case tidemill.TypeRolloutAborted:
		return "a rollout is aborted; its keys are rolled back"
	}
	return "a rollout has ended: " + string(d.Data.Result)
}

// read brings the evidence of a rollout up to the present ends of the streams.
func (w *Watcher) read(ctx context.Context, s *commands.Rollout) (*reading, error) {
	work := w.work[s.Recipe]
	if work == nil || work.rollout != s.Name() || !work.fresh.Equal(s.Fresh) {
		w.drop(s.Recipe)
		work = &reading{rollout: s.Name(), fresh: s.Fresh, Evidence: NewEvidence(s.Recipe, s.Name(), s.Fresh), left: map[string]string{}}
		w.work[s.Recipe] = work
		for _, from := range []struct {
			stream string
			at     time.Time
		}{
			{tidemill.StreamFacts, s.Began.Add(-clocks)},
			{tidemill.StreamOutcomes, s.Began.Add(-max(beforeWindow, w.now().Sub(s.Began)))}, // as long before as after
		} {
			r, err := follow.OpenReader(ctx, w.o.Broker, follow.ReaderOptions{Stream: from.stream, Start: broker.Since(from.at), MaxBytes: readBytes})
			if err != nil {
				return nil, fmt.Errorf("read the evidence of rollout %s: %w", s.Name(), err)
			}
			work.streams = append(work.streams, from.stream)
			work.readers = append(work.readers, r)
		}
	}
	for i := range work.readers {
		if err := follow.ReadToEnd(ctx, w.o.Broker, work.streams[i], work.readers[i], func(e *follow.Event) { work.Add(&e.View) }); err != nil {
			return nil, fmt.Errorf("read the evidence of rollout %s: %w", s.Name(), err)
		}
	}
	return work, nil
}

// mostFailed is the number of rollbacks that may fail in a look before the others wait too: Kafka may be away.
const mostFailed = 3

// rollBack gives the keys of a rollout the version before it. Each request has an id that derives from the rollout
// and the version, so a key goes back once, even if two controllers ask for it. A person's later change stays.
func (w *Watcher) rollBack(ctx context.Context, work *reading, s *commands.Rollout) error {
	todo, _ := work.Cohort()
	var failed []error
	for _, k := range todo {
		if len(failed) == mostFailed {
			break
		}
		if k.To == 0 {
			work.left[k.Model] = "it had no champion before the rollout"
			continue
		}
		reason := fmt.Sprintf("rollout %s is %s", s.Name(), s.State)
		if s.Reason != "" {
			reason += ": " + s.Reason
		}
		_, err := w.o.RollBack(ctx, registry.Wish{Model: k.Model, Action: tidemill.ActionRollback, Version: k.To, Basis: &k.Champion, Reason: reason,
			ID: "rollout " + s.Name() + " " + tidemill.VersionName(k.Model, k.Champion)})
		switch {
		case err == nil:
			delete(work.left, k.Model)
			work.RolledBack(k.Model, k.To)
		case errors.Is(err, registry.ErrMoved): // the facts of the change follow
		case errors.Is(err, registry.ErrRefused), errors.Is(err, registry.ErrUnknown):
			work.left[k.Model] = err.Error()
		default:
			failed = append(failed, fmt.Errorf("roll back the keys of rollout %s: %w", s.Name(), err))
		}
	}
	return errors.Join(failed...)
}

// remaining returns the number of keys that are still to be rolled back, and of those that are.
func (r *reading) remaining() (todo, back int) {
	all, back := r.Cohort()
	for _, k := range all {
		if r.left[k.Model] == "" {
			todo++
		}
	}
	return todo, back
}

// shownLeft is the number of models whose reason is shown.
const shownLeft = 20

// someLeft returns some of the models that cannot be rolled back, with the reasons.
func (r *reading) someLeft() map[string]string {
	some := map[string]string{}
	for _, model := range slices.Sorted(maps.Keys(r.left)) {
		if len(some) == shownLeft {
			break
		}
		some[model] = r.left[model]
	}
	return some
}

// drop forgets the evidence of a recipe's rollout.
func (w *Watcher) drop(recipe string) {
	if work := w.work[recipe]; work != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		for _, r := range work.readers {
			_ = r.Close(ctx) // it has no group to leave
		}
		delete(w.work, recipe)
	}
}

func (w *Watcher) closeAll() {
	for recipe := range w.work {
		w.drop(recipe)
	}
}
