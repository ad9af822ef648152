package registry

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Finished registers and judges what a run made, and announces what follows. The
// fact is its run.finished; said again it changes nothing.
func (r *Registrar) Finished(ctx context.Context, v *broker.View) error {
	w, err := newWork(v)
	if err != nil || w == nil {
		return err
	}
	if err := r.finish(ctx, w); err != nil {
		return fmt.Errorf("register and judge what run %s made for model %s: %w", w.Run, w.Model, err)
	}
	return nil
}

// finish goes from step to step by what the log says, so that it does not matter
// which of them somebody has done before.
func (r *Registrar) finish(ctx context.Context, w *work) error {
	counts, err := r.counts(ctx, w)
	if err != nil {
		return err
	}
	if !counts {
		r.log.Info("an attempt's version is passed over, for the attempt does not count", "run", w.Run, "recipe", w.Recipe, "key", w.Key, "model", w.Model)
		return nil
	}
	m, err := r.register(ctx, w)
	if err != nil {
		return err
	}
	h := m.OfRun(w.Run)
	if h == nil {
		r.log.Info("a version came too late", "run", w.Run, "recipe", w.Recipe, "key", w.Key, "model", w.Model,
			"reason", "its run began before versions that are no longer kept, or its key has gone")
		return nil
	}
	number := h.Number
	ours, m, err := r.judge(ctx, w, m)
	if err != nil {
		return err
	}
	if m, err = r.announce(ctx, m, ours, func(o tidemill.Owed) bool { return o.Version == number }); err != nil {
		return err
	}
	return r.again(ctx, w, m, number)
}

// register has the log know the version, and returns the model with it.
func (r *Registrar) register(ctx context.Context, w *work) (*tidemill.Model, error) {
	m, err := r.o.Ledger.Model(ctx, w.Model)
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", w.Model, err)
	}
	if m.OfRun(w.Run) != nil {
		return m, nil
	}
	report, err := r.measure(ctx, w)
	if err != nil {
		return nil, err
	}
	tree, err := r.keep(ctx, report)
	if err != nil {
		return nil, err
	}
	w.report = report
	r.step(toRegister)
	_, m, err = r.put(ctx, r.registeredFact(w, tree))
	return m, err
}

func (r *Registrar) registeredFact(w *work, report string) *fact {
	return &fact{typ: tidemill.TypeModelRegistered, id: tidemill.ID("registered", w.Model, w.Run), source: r.o.Names.Source(byPromote),
		model: w.Model, key: w.Key, recipe: w.Recipe, run: w.Run, chain: w.chain,
		data: tidemill.ModelRegistered{Artifact: w.result.Artifact, Bytes: w.result.Bytes, Files: w.result.Files, Report: report,
			Metrics: chosen(w.report.Metrics, w.Judge.Gate), Judge: w.Judge, Origin: w.Origin}}
}

// mostTurns is how often a version is judged anew because the champion has
// changed since it was looked up. More in so short a time would be no race.
const mostTurns = 20

var errTurns = errors.New("the champion changes faster than anything can be proposed; it is tried again")

// judge brings a version to its verdict, and returns the proposal that did.
func (r *Registrar) judge(ctx context.Context, w *work, m *tidemill.Model) (said, *tidemill.Model, error) {
	var last said
	for range mostTurns {
		h := m.OfRun(w.Run)
		if h == nil || h.State != tidemill.VersionRegistered {
			return last, m, nil
		}
		f, err := r.judgedFact(ctx, w, m, h)
		if err != nil {
			return said{}, nil, err
		}
		r.step(toPropose)
		if last, m, err = r.put(ctx, f); err != nil {
			return said{}, nil, err
		}
	}
	return said{}, nil, fmt.Errorf("propose version %d: %w", m.Last, errTurns)
}
