package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// Finish appends an attempt's end to the log, commits the output and starts the work that is due
// then. It returns the run as it is on the log. A repeated end, or an end of a superseded attempt,
// changes nothing.
func (f *Foreman) Finish(ctx context.Context, run *tidemill.Run, attempt int, d tidemill.RunFinished) (*tidemill.Run, error) {
	ctx, cancel := steady(ctx)
	defer cancel()
	if a := run.Attempt(); a == nil || a.Number != attempt {
		return f.ledger.Run(ctx, run.ID)
	}
	d.Attempt = attempt
	m, err := f.conclude(ctx, run, byGateway, checkOutput(run, d))
	if err != nil {
		return nil, err
	}
	now, err := f.currentRun(ctx, m, run.ID)
	if m.Gone && errors.Is(err, ledger.ErrUnknown) {
		now, err = forgotten(run), nil
	}
	f.logFailure(m, f.refill(ctx, run.Pool))
	return now, err
}

// refill starts the next run of a pool in the slot that an attempt has freed.
func (f *Foreman) refill(ctx context.Context, pool string) error {
	admitted, err := f.admit(ctx, pool)
	if err == nil && !admitted {
		f.crowds.noteEmpty(pool)
	}
	return err
}

// conclude appends an attempt's end to the log and commits the run's output at once. A failed
// commit is not returned as an error, because Watch tries again.
func (f *Foreman) conclude(ctx context.Context, run *tidemill.Run, component string, d tidemill.RunFinished) (*fold.Making, error) {
	at := f.now()
	if d.Outcome == tidemill.OutcomeLost {
		d.Saved = f.hasSaved(ctx, run, d.Attempt)
	}
	d.Candidate = candidate(run, d, at)
	_, m, err := f.appendFact(ctx, finishedFact(run, component, d, at), at)
	if errors.Is(err, broker.ErrTooLarge) {
		d = withoutDetails(d)
		_, m, err = f.appendFact(ctx, finishedFact(run, component, d, f.now()), f.now())
	}
	if err != nil {
		return nil, err
	}
	f.metrics.ended(run, d.Outcome, f.now())
	if nextStep(m, f.now()) != settles || m.Live.ID != run.ID {
		return m, nil
	}
	settled, err := f.commitOutput(ctx, m.Live)
	if err != nil {
		f.logFailure(m, err)
		return m, nil
	}
	return settled, nil
}

// currentRun returns a run from the making, or from the ledger if the making no longer contains it.
func (f *Foreman) currentRun(ctx context.Context, m *fold.Making, id string) (*tidemill.Run, error) {
	if run := m.Find(id); run != nil {
		return run, nil
	}
	return f.ledger.Run(ctx, id)
}

// checkOutput turns a success without output into a failure. Otherwise a run for a dataset would
// wait for its commit for ever, and a run for a model would succeed without a version.
func checkOutput(run *tidemill.Run, d tidemill.RunFinished) tidemill.RunFinished {
	var p tidemill.Plan
	_ = json.Unmarshal(run.Plan, &p) // the fold has written it
	if d.Outcome != tidemill.OutcomeSucceeded || d.Artifact != "" {
		return d
	}
	switch {
	case p.Dataset != "":
		d.Reason = fmt.Sprintf("it made nothing for the dataset %s; write files to TIDEMILL_OUT", p.Dataset)
	case p.Model != "":
		d.Reason = fmt.Sprintf("it made nothing for the model %s; write model.onnx to TIDEMILL_OUT", p.Model)
	default:
		return d
	}
	d.Outcome, d.Permanent = tidemill.OutcomeFailed, true
	return d
}

// withoutDetails returns a failure for an attempt whose end does not fit into an event because of
// its metrics or inputs. If they were cut silently, they would be wrong.
func withoutDetails(d tidemill.RunFinished) tidemill.RunFinished {
	return tidemill.RunFinished{Attempt: d.Attempt, Outcome: tidemill.OutcomeFailed, Permanent: true, Where: d.Where,
		Reason: fmt.Sprintf("its end does not fit into an event: %d metrics; write fewer to metrics.json", len(d.Metrics)),
		Result: tidemill.Result{Exit: d.Exit, Signal: d.Signal, PeakMemory: d.PeakMemory, GPUSeconds: d.GPUSeconds, Stages: d.Stages}}
}

// Cancel requests the end of a run and returns the run as it is on the log. A run that has not
// begun, or that waits for its next attempt, ends at once. If an attempt is under way, the response
// to its agent's next beat reports the cancellation. A run that has succeeded is not changed.
func (f *Foreman) Cancel(ctx context.Context, run *tidemill.Run, by, reason string) (*tidemill.Run, error) {
	if run.State.Ended() || run.State == tidemill.RunCommitting || run.Cancel != nil {
		return run, nil
	}
	_, m, err := f.appendFact(ctx, cancelledFact(run, by, reason), f.now())
	if err != nil {
		return nil, err
	}
	f.inPassing(ctx, m) // another run of the key may have waited for this run's end
	return f.currentRun(ctx, m, run.ID)
}

// commitOutput commits a run's output to its dataset and appends the fact. The ids of commit, event
// and fact derive from the run. So if a process repeats the steps after a crash, or two processes
// do them at the same time, there is still only one commit, event and fact.
func (f *Foreman) commitOutput(ctx context.Context, run *tidemill.Run) (*fold.Making, error) {
	ctx, cancel := steady(ctx)
	defer cancel()
	r, err := commitRequest(run)
	if err != nil {
		return nil, err
	}
	if run.Cancel != nil { // its key was deleted
		return f.unsettled(ctx, run, r, "its output was not committed to dataset "+r.Dataset+": "+run.Cancel.Reason)
	}
	r.Announce = f.opt.Announce
	c, err := f.opt.Store.Commit(ctx, r, nil)
	switch {
	case isOutputGone(err) && !errors.Is(err, store.ErrCorrupt) && f.now().Sub(f.lackedSince(run.ID)) < outputArrives:
		return nil, fmt.Errorf("commit the output of run %s to dataset %s: %w; retrying for %v, because a copy of the store may lag", run.ID, r.Dataset, err, outputArrives)
	case isOutputGone(err):
		return f.unsettled(ctx, run, r, fmt.Sprintf("its output could not be committed to dataset %s: %v; start it again", r.Dataset, err))
	case err != nil:
		return nil, fmt.Errorf("commit the output of run %s to dataset %s: %w", run.ID, r.Dataset, err)
	}
	f.lacked.Delete(run.ID)
	_, m, err := f.appendFact(ctx, committedFact(run, tidemill.RunCommitted{Dataset: r.Dataset, Branch: r.Branch, Commit: c.ID}), f.now())
	return m, err
}

// lackedSince returns when the store first lacked the output of a run.
func (f *Foreman) lackedSince(run string) time.Time {
	since, _ := f.lacked.LoadOrStore(run, f.now())
	return since.(time.Time)
}

// unsettled appends the fact that the run will have no commit.
func (f *Foreman) unsettled(ctx context.Context, run *tidemill.Run, r store.CommitRequest, why string) (*fold.Making, error) {
	f.lacked.Delete(run.ID)
	_, m, err := f.appendFact(ctx, committedFact(run, tidemill.RunCommitted{Dataset: r.Dataset, Branch: r.Branch, Lost: why}), f.now())
	return m, err
}

// outputArrives is the time in which a run's output may still come into the store. A copy of a store may
// lag by minutes. The key's next run waits meanwhile.
const outputArrives = 10 * time.Minute

// isOutputGone reports whether the store does not have the run's output.
func isOutputGone(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrMissing) || errors.Is(err, store.ErrCorrupt)
}

// commitRequest returns the commit of a run's whole output, as the branch's next version. It
// depends only on the run, neither on the caller nor on the time.
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

// byForget is the component that deletes the runs of a key.
const byForget = "forget"

// Forgetting is a request to delete a key's runs of one recipe.
type Forgetting struct {
	Recipe, Key string
	By, Reason  string
	Cause       tidemill.Cause // cause of the request; the fact's id derives from it
	Correlation string
	Trace       string // traceparent
}

// Forget ends the runs of a recipe for a deleted key, and removes their state. It returns the
// position of the fact: a run that began before it is void. A run that waits ends at once. An
// attempt under way is cancelled, as by [Foreman.Cancel]; the making contains its run until it has
// ended.
func (f *Foreman) Forget(ctx context.Context, r Forgetting) (tidemill.Mark, *fold.Making, error) {
	if err := CheckKey(r.Key); err != nil {
		return tidemill.Mark{}, nil, fmt.Errorf("forget what recipe %s has made: %w", r.Recipe, err)
	}
	where, m, err := f.appendFact(ctx, forgottenFact(r), f.now())
	if err != nil {
		return tidemill.Mark{}, nil, err
	}
	at := tidemill.Mark{Partition: where.Partition, Offset: where.Offset}
	if m.Begun > 0 {
		at.Making, at.Number = tidemill.RunKey(r.Recipe, r.Key), m.Removed
	}
	return at, m, nil
}

// forgottenFact names no run because it is about all runs of the key. The recipe may no longer be
// in the config.
func forgottenFact(r Forgetting) fact {
	a := fact{typ: tidemill.TypeRunForgotten, component: byForget,
		id:     tidemill.ID("forgotten", r.Recipe, r.Key, r.Cause.Source, r.Cause.ID),
		recipe: r.Recipe, key: r.Key, cause: r.Cause, chain: chain{Correlation: r.Correlation, Trace: r.Trace},
		data: tidemill.RunForgotten{Cause: r.Cause, Reason: r.Reason}}
	a.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: r.By}}
	return a
}

// forgotten returns the last state of a run whose key was deleted while its last attempt was
// ending. The ledger no longer knows the run.
func forgotten(run *tidemill.Run) *tidemill.Run {
	r := *run
	r.State, r.Event, r.Plan, r.PlanMAC = tidemill.RunCancelled, nil, nil, ""
	if r.Cancel != nil {
		r.Reason = r.Cancel.Reason
	}
	return &r
}

// savedWithin is how long the end of a lost attempt waits for the store.
const savedWithin = 5 * time.Second

// hasSaved reports whether an attempt has stored a new checkpoint. If the store does not answer, the
// attempt counts as one that has not.
func (f *Foreman) hasSaved(ctx context.Context, run *tidemill.Run, attempt int) bool {
	ctx, cancel := context.WithTimeout(ctx, savedWithin)
	defer cancel()
	saved, err := f.opt.Store.HasAdvanced(ctx, run.ID, attempt)
	if err != nil {
		f.log.Warn("scheduler: whether a lost attempt has stored a new checkpoint is not known; it counts as one that has not", "recipe", run.Recipe, "key", run.Key, "run", run.ID, "reason", err)
	}
	return saved
}
