package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

// settle puts what a run has made on its dataset, and tells the log. Each of its
// steps is named after the run: whoever repeats them after a crash, or does them
// at the same time, makes one commit, one event and one end.
func (f *Foreman) settle(ctx context.Context, run *tidemill.Run) (*tidemill.Making, error) {
	ctx, cancel := steady(ctx)
	defer cancel()
	r, err := commitRequest(run)
	if err != nil {
		return nil, err
	}
	if run.Cancel != nil { // its key has gone
		return f.unsettled(ctx, run, r, "it was not put on dataset "+r.Dataset+": "+run.Cancel.Reason)
	}
	r.Announce = f.opt.Announce
	c, err := f.opt.Store.Commit(ctx, r, nil)
	switch {
	case gone(err):
		return f.unsettled(ctx, run, r, fmt.Sprintf("what it made could not be put on dataset %s: %v; start it again", r.Dataset, err))
	case err != nil:
		return nil, fmt.Errorf("put what run %s made on dataset %s: %w", run.ID, r.Dataset, err)
	}
	_, m, err := f.put(ctx, committedFact(run, tidemill.RunCommitted{Dataset: r.Dataset, Branch: r.Branch, Commit: c.ID}), f.now())
	return m, err
}

// unsettled tells the log that there will be no commit.
func (f *Foreman) unsettled(ctx context.Context, run *tidemill.Run, r store.CommitRequest, why string) (*tidemill.Making, error) {
	_, m, err := f.put(ctx, committedFact(run, tidemill.RunCommitted{Dataset: r.Dataset, Branch: r.Branch, Lost: why}), f.now())
	return m, err
}

// gone reports whether the store has lost what was made, so that no patience
// brings it back.
func gone(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrMissing) || errors.Is(err, store.ErrCorrupt)
}

// commitRequest is the commit of what a run has made: the whole of it, as the
// branch's next version. Nothing in it depends on who asks, or when.
func commitRequest(run *tidemill.Run) (store.CommitRequest, error) {
	var p tidemill.Plan
	if err := json.Unmarshal(run.Plan, &p); err != nil {
		return store.CommitRequest{}, fmt.Errorf("read the plan of run %s: %w", run.ID, err)
	}
	if run.Result == nil || run.Result.Artifact == "" {
		return store.CommitRequest{}, fmt.Errorf("run %s has made nothing that could be put on dataset %s", run.ID, p.Dataset)
	}
	return store.CommitRequest{
		CommitAsked: api.CommitAsked{Dataset: p.Dataset, Branch: p.Branch, Request: run.ID, Replace: true,
			Message: fmt.Sprintf("made by recipe %s for %s", run.Recipe, run.Key)},
		By: run.By, Run: run.ID, Base: run.Result.Artifact, Time: run.Attempts[len(run.Attempts)-1].Ended}, nil
}
