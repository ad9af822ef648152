package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/serving"
)

// Scored is the data of tidemill.scored.
type Scored struct {
	Label  string             `json:"label,omitempty"`
	Score  float64            `json:"score,omitempty"`  // score of the label
	Scores map[string]float64 `json:"scores,omitempty"` // scores by label, or by number
	Values []float64          `json:"values,omitempty"` // outputs of a model that is not a classifier
}

// Result is the score of one event.
type Result struct {
	Model   string `json:"model"`
	Version int    `json:"version"`
	Scored
}

// ErrNoModel reports that an event's key has no champion.
var ErrNoModel = errors.New("has no champion")

// ErrUnscorable reports that an event lacks fields that the model or its name needs, or that its
// model cannot be loaded. A retry with the same champion fails too.
var ErrUnscorable = errors.New("the event cannot be scored")

// Once scores one event and publishes nothing. It waits for a model that is loading as
// long as the context allows.
func Once(ctx context.Context, c config.Scorer, m *serving.Models, v *broker.View) (Result, error) {
	place := newKeyPlace(c.Key, c.Model)
	key, err := place.keyOf(v)
	if errors.Is(err, errNoKey) { // the caller does not publish it
		err = fmt.Errorf("%w: there is no text at %s; put it there, or with --key of tidemill score if that is the subject", errNoKey, place.place.String())
	}
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	k, err := newCache(c.Model, 1).entryOf(key)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	model, err := await(ctx, m, k.target.name, false)
	if errors.Is(err, ErrNoModel) && c.NoModel.Action == config.NoModelUse {
		model, err = await(ctx, m, c.NoModel.Model, false)
	}
	if errors.Is(err, errUnloadable) {
		err = fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	if err != nil {
		return Result{}, err
	}
	defer model.Release()
	r, err := Answer(&c, model, v, infer.BudgetOf(ctx))
	if errors.Is(err, infer.ErrNoRoom) || errors.Is(err, infer.ErrAway) {
		return r, err
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	return r, nil
}

// Fits returns an error if a scorer cannot give a model its inputs.
func Fits(c *config.Scorer, m *infer.Model) error {
	_, err := features.New(fieldsOf(c), m.Inputs())
	return err
}

// failedEvery is how often await checks whether a load has failed. The call then returns the reason
// and does not wait for a store that is away.
const failedEvery = 100 * time.Millisecond

// await waits for a model's version and returns it. If patient is set, it also waits
// for a store that is away.
func await(ctx context.Context, m *serving.Models, name string, patient bool) (*infer.Model, error) {
	if !m.Known(name) { // a slot is never removed, and any name may be asked for
		return nil, fmt.Errorf("model %s %w: train it, or promote one of its versions", name, ErrNoModel)
	}
	slot := m.Slot(name)
	look := time.NewTicker(failedEvery)
	defer look.Stop()
	for {
		model, state := slot.Use()
		switch state {
		case serving.Ready:
			return model, nil
		case serving.Missing:
			return nil, fmt.Errorf("model %s %w: train it, or promote one of its versions", name, ErrNoModel)
		case serving.Broken:
			return nil, fmt.Errorf("model %s: %w: %w", name, errUnloadable, slot.Err())
		}
		switch err := slot.Err(); {
		case errors.Is(err, infer.ErrNoRuntime): // a person has to install it
			return nil, fmt.Errorf("model %s: %w: %w", name, errUnloadable, err)
		case err != nil && !patient && !errors.Is(err, infer.ErrUnfit): // a newer version does not fit, and the one before is being loaded
			return nil, fmt.Errorf("model %s cannot be loaded now: %w", name, err)
		}
		select {
		case <-slot.Waiter():
		case <-look.C: // a failed load wakes no waiter
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for model %s to be loaded: %w", name, errors.Join(context.Cause(ctx), slot.Err()))
		}
	}
}

// Answer is the answer of a loaded model to one event, whose inputs are read as the scorer reads them.
// A nil budget has no limit.
func Answer(c *config.Scorer, m *infer.Model, v *broker.View, b tensor.Budget) (Result, error) {
	plan, err := features.New(fieldsOf(c), m.Inputs())
	if err != nil {
		return Result{}, err
	}
	in, out := make([]tensor.Tensor, len(m.Inputs())), make([]tensor.Tensor, len(m.Outputs()))
	plan.Begin(in, 1)
	if err := plan.Read(v, in, 0); err != nil {
		return Result{}, err
	}
	plan.End(in, 1)
	r := Result{Model: m.Ref().Model, Version: m.Ref().Version}
	if err := m.RunWithin(b, in, out); err != nil {
		return r, fmt.Errorf("model %s, version %d: %w", r.Model, r.Version, err)
	}
	a := m.Answer(out, 0)
	if slices.ContainsFunc(a.Scores, notFinite) || slices.ContainsFunc(a.Values, notFinite) {
		return r, fmt.Errorf("model %s, version %d: %w", r.Model, r.Version, errNotFinite)
	}
	if err := json.Unmarshal(appendScored(nil, &a, c.Top), &r.Scored); err != nil {
		return r, fmt.Errorf("read what model %s, version %d says: %w", r.Model, r.Version, err)
	}
	return r, nil
}

// errNotFinite reports an answer with numbers that a Result cannot hold: they would be 0 in it.
var errNotFinite = errors.New("its answer has NaN or infinity; on a stream such numbers are null")

func notFinite(v float32) bool { return v-v != 0 }

// Answerer answers single events with one model, as a scorer does, and writes nothing. One goroutine uses it.
type Answerer struct {
	m *infer.Model
	b batch
	w worker
}

// errNoLabel reports that a model is not a classifier.
var errNoLabel = errors.New("its answer has no label")

// NewAnswerer returns an Answerer for a scorer's events. The caller releases the model after the last answer.
func NewAnswerer(c *config.Scorer, m *infer.Model) (*Answerer, error) {
	p := plans{fields: fieldsOf(c)}
	plan, err := p.planFor(m)
	if err != nil {
		return nil, err
	}
	a := &Answerer{m: m}
	a.b.groups = []group{{target: &target{}, model: m, plan: plan}}
	a.b.items = make([]item, 1)
	return a, nil
}

// Label returns the label of the answer to an event. The error is [infer.ErrAway] if another try may succeed.
func (a *Answerer) Label(v *broker.View) (string, error) {
	a.b.items[0] = item{v: v}
	a.w.read(&a.b, &a.b.groups[0], []int32{0})
	if it := &a.b.items[0]; it.verdict == dead {
		return "", it.reason
	}
	if err := a.w.runModel(a.m); err != nil {
		return "", fmt.Errorf("model %s, version %d: %w", a.m.Ref().Model, a.m.Ref().Version, err)
	}
	answer := a.m.Answer(a.w.out, 0)
	if answer.Label == "" {
		return "", errNoLabel
	}
	return answer.Label, nil
}
