package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/models/evidence"
)

// Options configure a Watcher.
type Options struct {
	Broker *broker.Broker
	Ledger *ledger.Ledger
	Settle func(ctx context.Context, model string, version int, j tidemill.Judgement) error // registry.Registrar.Settle
	Active func() bool                                                                      // whether this is the active controller
	Every  time.Duration                                                                    // time between looks; 0 is 2 s
	Now    func() time.Time                                                                 // nil is time.Now
	Logger *slog.Logger
}

// Watcher ends canaries. Any number of processes may have one; the log takes each end once. Its state follows from the
// log: a new one reads the outcomes since the oldest canary began.
type Watcher struct {
	o        Options
	facts    *follow.Reader // facts after those that the ledger had at the beginning
	outcomes *follow.Reader // nil if there is no canary
	records  map[string]*Record
	failed   string // error that was logged last
}

const readBytes = 16 << 20

// New returns a Watcher.
func New(o Options) *Watcher {
	if o.Every <= 0 {
		o.Every = 2 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Watcher{o: o}
}

// Watch looks at all canaries until the context ends.
func (w *Watcher) Watch(ctx context.Context) {
	defer w.close()
	for {
		if w.o.Active() {
			w.report(ctx, w.Look(ctx))
		} else {
			w.close()
		}
		if retry.Sleep(ctx, w.o.Every) != nil {
			return
		}
	}
}

func (w *Watcher) report(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
		w.close()
	}
	if text != "" && text != w.failed && ctx.Err() == nil && !errors.Is(err, ledger.ErrCatchingUp) {
		w.o.Logger.Warn("canary: a look failed; retrying", "reason", err)
	}
	w.failed = text
}

// Look ends the canaries that have been decided.
func (w *Watcher) Look(ctx context.Context) error {
	if w.facts == nil {
		if err := w.open(ctx); err != nil {
			return err
		}
	}
	if err := w.readFacts(ctx); err != nil {
		return err
	}
	models, err := w.present(ctx)
	if err != nil {
		return err
	}
	if len(models) == 0 {
		return w.closeOutcomes(ctx)
	}
	if err := w.readOutcomes(ctx, models); err != nil {
		return err
	}
	return w.settle(ctx, models)
}

// settle ends the canaries that have been decided. An error with one model does not keep the others waiting.
func (w *Watcher) settle(ctx context.Context, models []*fold.Model) error {
	var failed []error
	for _, m := range models {
		j := Decide(m, w.records[m.Name], w.o.Now())
		if j == nil {
			continue
		}
		if err := w.o.Settle(ctx, m.Name, m.Canary.Version, *j); err != nil {
			failed = append(failed, err)
			continue
		}
		w.o.Logger.Info("canary: "+j.Sentence, "model", m.Name, "version", m.Canary.Version)
	}
	return errors.Join(failed...)
}

// open finds the canaries of all models once. After that, the facts name new ones.
func (w *Watcher) open(ctx context.Context) error {
	w.records = map[string]*Record{}
	places, _, err := w.o.Ledger.EachModel(ctx, func(m *fold.Model) {
		if m.Canary != nil {
			w.records[m.Name] = NewRecord(m)
		}
	})
	if err != nil {
		return fmt.Errorf("list the canaries: %w", err)
	}
	var from follow.Place
	for _, p := range places {
		from.Set(p.Partition, p.Offset)
	}
	w.facts, err = follow.OpenReader(ctx, w.o.Broker, follow.ReaderOptions{Stream: tidemill.StreamFacts, Resume: from, MaxBytes: readBytes})
	return err
}

func (w *Watcher) readFacts(ctx context.Context) error {
	return follow.ReadToEnd(ctx, w.o.Broker, tidemill.StreamFacts, w.facts, func(e *follow.Event) {
		if model, _ := e.Attribute(tidemill.AttrModel); e.Type == tidemill.TypeModelCanary && w.records[model] == nil {
			w.records[strings.Clone(model)] = nil // the ledger has it
		}
	})
}

// present returns the models that have a canary now, and begins the records of new ones.
func (w *Watcher) present(ctx context.Context) (all []*fold.Model, err error) {
	for name, r := range w.records {
		m, err := w.o.Ledger.Model(ctx, name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("look up model %s: %w", name, err)
		case m.Canary == nil:
			delete(w.records, name)
			continue
		case r == nil || r.version != m.Canary.Version:
			w.records[name] = NewRecord(m)
		}
		all = append(all, m)
	}
	return all, nil
}

// readOutcomes reads the outcomes since the oldest canary began, and then the new ones.
func (w *Watcher) readOutcomes(ctx context.Context, models []*fold.Model) (err error) {
	if w.outcomes == nil {
		oldest := w.o.Now()
		for _, m := range models {
			if m.Canary.At.Before(oldest) {
				oldest = m.Canary.At
			}
		}
		w.outcomes, err = follow.OpenReader(ctx, w.o.Broker, follow.ReaderOptions{Stream: tidemill.StreamOutcomes, Start: broker.Since(oldest), MaxBytes: readBytes})
		if err != nil {
			return fmt.Errorf("read the outcomes of canaries: %w", err)
		}
	}
	return follow.ReadToEnd(ctx, w.o.Broker, tidemill.StreamOutcomes, w.outcomes, func(e *follow.Event) {
		model, _ := e.Attribute(tidemill.AttrModel)
		r := w.records[model]
		if r == nil || e.Type != tidemill.TypeOutcome {
			return
		}
		var d tidemill.OutcomeData
		if json.Unmarshal(e.Data, &d) == nil {
			r.Add(&d)
		}
	})
}

func (w *Watcher) closeOutcomes(ctx context.Context) error {
	if w.outcomes == nil {
		return nil
	}
	r := w.outcomes
	w.outcomes = nil
	return r.Close(ctx)
}

// close forgets everything; the next look reads it again.
func (w *Watcher) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = w.closeOutcomes(ctx) // readers have no group to leave
	if w.facts != nil {
		_ = w.facts.Close(ctx)
		w.facts = nil
	}
}

// alpha is the probability with which a canary that is not worse is ever refused for being worse.
const alpha = 0.05

// Record has the outcomes of a canary and of the champion beside it.
type Record struct {
	champion int
	version  int
	before   evidence.Before // outcomes of the champion that are not compared yet
	lead     *evidence.Lead
	outcomes int // of the canary
}

// NewRecord returns the record of a model's canary before any outcome.
func NewRecord(m *fold.Model) *Record {
	return &Record{champion: m.Champion, version: m.Canary.Version, lead: evidence.NewLead(alpha)}
}

// Add counts an outcome of the model. The canary's outcome is compared with the champion's newest one that is not
// compared yet: the two versions answer different events, which a hash has chosen.
func (r *Record) Add(o *tidemill.OutcomeData) {
	switch o.Version {
	case r.champion:
		r.before.Add(o.Right())
	case r.version:
		r.outcomes++
		if right, ok := r.before.Take(); ok {
			r.lead.Add(o.Group, o.Right(), right)
		}
	}
}

// Decide returns the judgement of a canary; nil if it goes on.
func Decide(m *fold.Model, r *Record, now time.Time) *tidemill.Judgement {
	c := m.Canary
	age := now.Sub(c.At)
	switch {
	case r.lead.Worse(c.Worse) >= 1/alpha:
		return r.judgement(m, false, "its answers are worse: "+r.figures())
	case age < c.Hold:
		return nil
	case c.Unserved != nil:
		return r.judgement(m, false, fmt.Sprintf("scorer %s cannot serve it: %s", c.Unserved.Scorer, c.Unserved.Error))
	case r.outcomes >= c.Least:
		return r.judgement(m, true, "its answers are not worse: "+r.figures())
	case age >= c.Until:
		return r.judgement(m, false, fmt.Sprintf("it has %d outcomes after %s, fewer than %d", r.outcomes, c.Until, c.Least))
	}
	return nil
}

func (r *Record) figures() string {
	low, value, high := r.lead.Bounds()
	return fmt.Sprintf("%d outcomes, its accuracy minus that of version %d is %.3f (%.3f to %.3f)", r.outcomes, r.champion, value, low, high)
}

func (r *Record) judgement(m *fold.Model, passed bool, why string) *tidemill.Judgement {
	low, value, high := r.lead.Bounds()
	verb := "is refused"
	if passed {
		verb = "passes"
	}
	return &tidemill.Judgement{Passed: passed, Against: m.Champion, Lead: &value,
		Sentence: fmt.Sprintf("the canary, version %d of %s, %s: %s", r.version, m.Name, verb, why),
		Clauses: []tidemill.Clause{{Text: "the canary is not worse than the champion", Passed: passed,
			Values: map[string]float64{"canary.outcomes": float64(r.outcomes), "canary.lead.low": low, "canary.lead.value": value, "canary.lead.high": high}}}}
}
