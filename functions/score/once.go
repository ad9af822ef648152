package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/infer/tensor"
	"tidemill.dev/internal/pick"
	"tidemill.dev/internal/served"
)

// ErrNoModel says that no champion answers for an event's key.
var ErrNoModel = errors.New("has no champion")

// ErrUnscorable says that an event does not have what the model or its name needs.
var ErrUnscorable = errors.New("the event cannot be scored")

// Once scores one event that is on no stream, and publishes nothing. It waits for
// a model that is loading as long as the context allows.
func Once(ctx context.Context, c config.Scorer, m *served.Models, v *broker.View) (Result, error) {
	place := newKeyPlace(c.Key, c.Model)
	key, err := place.of(v)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	k, err := newCache(c.Model, 1).of(key)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	model, err := await(ctx, m, k.target.name, false)
	if errors.Is(err, ErrNoModel) && c.NoModel.Action == config.NoModelUse {
		model, err = await(ctx, m, c.NoModel.Model, false)
	}
	if err != nil {
		return Result{}, err
	}
	defer model.Release()
	r, err := answer(&c, model, v)
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrUnscorable, err)
	}
	return r, nil
}

// failedEvery is how often somebody who waits for a model sees whether its load has
// failed: he is told why, rather than left to wait for a store that is away.
const failedEvery = 100 * time.Millisecond

// await is a model's version that answers, once there is one. Who is patient waits
// for a store that is away, too.
func await(ctx context.Context, m *served.Models, name string, patient bool) (*infer.Model, error) {
	if !m.Known(name) { // a slot stays, and names may come from anybody
		return nil, fmt.Errorf("model %s %w: train it, or promote one of its versions", name, ErrNoModel)
	}
	slot := m.Slot(name)
	look := time.NewTicker(failedEvery)
	defer look.Stop()
	for {
		model, state := slot.Use()
		switch state {
		case served.Ready:
			return model, nil
		case served.Missing:
			return nil, fmt.Errorf("model %s %w: train it, or promote one of its versions", name, ErrNoModel)
		case served.Broken:
			return nil, fmt.Errorf("model %s: %w: %w", name, errUnloadable, slot.Err())
		}
		if err := slot.Err(); err != nil && !patient && !errors.Is(err, infer.ErrUnfit) { // unfit is the newer one, and the one before is being loaded
			return nil, fmt.Errorf("model %s cannot be loaded now: %w", name, err)
		}
		select {
		case <-slot.Waiter():
		case <-look.C: // a try that failed wakes nobody
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for model %s to be loaded: %w", name, errors.Join(context.Cause(ctx), slot.Err()))
		}
	}
}

func answer(c *config.Scorer, m *infer.Model, v *broker.View) (Result, error) {
	plan, err := pick.New(fieldsOf(c), m.Inputs())
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
	if err := m.Run(in, out); err != nil {
		return r, fmt.Errorf("model %s, version %d: %w", r.Model, r.Version, err)
	}
	a := m.Answer(out, 0)
	if err := json.Unmarshal(appendScored(nil, &a, c.Top), &r.Scored); err != nil {
		return r, fmt.Errorf("read what model %s, version %d says: %w", r.Model, r.Version, err)
	}
	return r, nil
}
