package runs

import (
	"context"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

// settlePlan makes the plan of a run's first attempt. An error that is *unfit
// comes with a plan all the same, by which nothing can be launched.
func (f *Foreman) settlePlan(ctx context.Context, r config.Recipe, run *tidemill.Run) (tidemill.Plan, error) {
	p, err := draft(r, run, f.opt.Dir)
	if err == nil {
		err = f.lookUp(ctx, &p)
	}
	if err == nil {
		p.Champion, err = f.champion(ctx, p.Model)
	}
	if _, hopeless := errors.AsType[*unfit](err); hopeless {
		return unmade(r, run), err
	}
	return p, err
}

// lookUp finds what a plan's datasets hold.
func (f *Foreman) lookUp(ctx context.Context, p *tidemill.Plan) error {
	for i, in := range p.Inputs {
		if in.Dataset == "" {
			continue
		}
		c, err := f.commitOf(ctx, in)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return missing(in)
		case errors.Is(err, store.ErrInvalid):
			return unfitf("the input %s cannot be told: %v; the newest event names it so", in.Name, err)
		case errors.Is(err, store.ErrCorrupt):
			return unfitf("the input %s cannot be read: %v; put its files again", in.Name, err)
		case err != nil:
			return fmt.Errorf("look the input %s up: %w", in.Name, err)
		}
		p.Inputs[i] = found(in, c)
	}
	return nil
}

func (f *Foreman) commitOf(ctx context.Context, in tidemill.Input) (api.Commit, error) {
	if in.Commit != "" {
		return f.opt.Store.FindCommit(ctx, in.Dataset, in.Commit)
	}
	return f.opt.Store.Head(ctx, in.Dataset, in.Branch)
}

// champion is the version that a run measures beside its own; nil if there is
// none. One that changes while the run is under way is found out when the version
// is judged.
func (f *Foreman) champion(ctx context.Context, model string) (*tidemill.Champion, error) {
	if model == "" {
		return nil, nil
	}
	m, err := f.ledger.Model(ctx, model)
	if err != nil {
		return nil, fmt.Errorf("look up model %s: %w", model, err)
	}
	if m.Champion == 0 {
		return nil, nil
	}
	all, err := f.ledger.Versions(ctx, model, m.Champion)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up %s: %w", tidemill.VersionName(model, m.Champion), err)
	case len(all) == 0:
		return nil, fmt.Errorf("look up %s: it has changed meanwhile", tidemill.VersionName(model, m.Champion))
	}
	return f.laidOut(ctx, model, &tidemill.Champion{Version: m.Champion, Artifact: all[0].Artifact})
}

// laidOut is the champion if it can be laid before a command. Where its files are
// lost the model is made all the same: only so there can be another.
func (f *Foreman) laidOut(ctx context.Context, model string, c *tidemill.Champion) (*tidemill.Champion, error) {
	_, err := f.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		f.log.Warn("the champion's files are lost, and a run is given none to measure", "model", model, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the files of %s: %w", tidemill.VersionName(model, c.Version), err)
	}
	return c, nil
}

func missing(in tidemill.Input) error {
	if in.Commit != "" {
		return unfitf("the input %s is not there: dataset %s has no commit %s, which the newest event names", in.Name, in.Dataset, in.Commit)
	}
	return unfitf("the input %s is not there: dataset %s has no commit on branch %s yet; put files there with `tidemill data put`, and ask again", in.Name, in.Dataset, in.Branch)
}
