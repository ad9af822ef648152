package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// Finish puts an attempt's last word on the log, makes its effects and starts
// what is due then. The result is the run as the log has it: said twice, or by an
// attempt that counts no more, it changes nothing.
func (f *Foreman) Finish(ctx context.Context, run *tidemill.Run, attempt int, d tidemill.RunFinished) (*tidemill.Run, error) {
	ctx, cancel := steady(ctx)
	defer cancel()
	if a := run.Attempt(); a == nil || a.Number != attempt {
		return f.ledger.Run(ctx, run.ID)
	}
	d.Attempt = attempt
	m, err := f.conclude(ctx, run, byGateway, sound(run, d))
	if err != nil {
		return nil, err
	}
	now, err := f.asItIs(ctx, m, run.ID)
	if m.Gone && errors.Is(err, ledger.ErrUnknown) {
		now, err = forgotten(run), nil
	}
	f.forgive(m, f.refill(ctx, run.Pool))
	return now, err
}

// refill gives the slot that an attempt has freed to whoever is next.
func (f *Foreman) refill(ctx context.Context, pool string) error {
	admitted, err := f.admit(ctx, pool)
	if err == nil && !admitted {
		f.crowds.over(pool)
	}
	return err
}

// conclude puts an attempt's end on the log and settles what follows at once.
// That this fails is no error of the attempt's: it is tried again.
func (f *Foreman) conclude(ctx context.Context, run *tidemill.Run, component string, d tidemill.RunFinished) (*fold.Making, error) {
	at := f.now()
	d.Candidate = candidate(run, d, at)
	_, m, err := f.put(ctx, finishedFact(run, component, d, at), at)
	if errors.Is(err, broker.ErrTooLarge) {
		d = tooMuch(d)
		_, m, err = f.put(ctx, finishedFact(run, component, d, f.now()), f.now())
	}
	if err != nil {
		return nil, err
	}
	f.metrics.ended(run, d.Outcome, f.now())
	if next(m, f.now()) != settles || m.Live.ID != run.ID {
		return m, nil
	}
	settled, err := f.settle(ctx, m.Live)
	if err != nil {
		f.forgive(m, err)
		return m, nil
	}
	return settled, nil
}

// asItIs is a run that the making may name no more.
func (f *Foreman) asItIs(ctx context.Context, m *fold.Making, id string) (*tidemill.Run, error) {
	if run := m.Find(id); run != nil {
		return run, nil
	}
	return f.ledger.Run(ctx, id)
}

// sound holds a success to what the plan says is made: a run that has nothing to
// put on its dataset would settle for ever, and one without a version would have
// succeeded at nothing.
func sound(run *tidemill.Run, d tidemill.RunFinished) tidemill.RunFinished {
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

// tooMuch is the end of an attempt that told more than an event can hold, which
// its metrics can be, or its inputs. Cut in silence they would be wrong ones.
func tooMuch(d tidemill.RunFinished) tidemill.RunFinished {
	return tidemill.RunFinished{Attempt: d.Attempt, Outcome: tidemill.OutcomeFailed, Permanent: true, Where: d.Where,
		Reason: fmt.Sprintf("it told of more than an event can hold: %d metrics; write fewer to metrics.json", len(d.Metrics)),
		Result: tidemill.Result{Exit: d.Exit, Signal: d.Signal, PeakMemory: d.PeakMemory, GPUSeconds: d.GPUSeconds, Stages: d.Stages}}
}

// Cancel asks that a run ends, and returns it as the log has it then. One that
// has not begun, or rests between two attempts, has ended with that; the agent of
// a live one hears of it at its next beat. One that has succeeded already is not
// changed.
func (f *Foreman) Cancel(ctx context.Context, run *tidemill.Run, by, reason string) (*tidemill.Run, error) {
	if run.State.Ended() || run.State == tidemill.RunSettling || run.Cancel != nil {
		return run, nil
	}
	_, m, err := f.put(ctx, cancelledFact(run, by, reason), f.now())
	if err != nil {
		return nil, err
	}
	f.inPassing(ctx, m) // another run of the key may have waited for this one's end
	return f.asItIs(ctx, m, run.ID)
}

// settle puts what a run has made on its dataset, and tells the log. Each of its
// steps is named after the run: whoever repeats them after a crash, or does them
// at the same time, makes one commit, one event and one end.
func (f *Foreman) settle(ctx context.Context, run *tidemill.Run) (*fold.Making, error) {
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
func (f *Foreman) unsettled(ctx context.Context, run *tidemill.Run, r store.CommitRequest, why string) (*fold.Making, error) {
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

// byForget is the component that ends what belongs to a key.
const byForget = "forget"

// Forgetting is the end of a key for one recipe.
type Forgetting struct {
	Recipe, Key string
	By, Reason  string
	Cause       tidemill.Cause // the fact that asked: the end is named after it
	Correlation string
	Trace       string // traceparent
}

// Forget ends what a recipe makes for a key that has gone, and forgets what it
// has made. The mark is where the fact lies: a run that began before it counts
// no more. What waits or rests has gone with that; an attempt under way is told
// to end, as by [Foreman.Cancel], and the making has it until it has.
func (f *Foreman) Forget(ctx context.Context, r Forgetting) (tidemill.Mark, *fold.Making, error) {
	if err := CheckKey(r.Key); err != nil {
		return tidemill.Mark{}, nil, fmt.Errorf("forget what recipe %s has made: %w", r.Recipe, err)
	}
	where, m, err := f.put(ctx, forgottenFact(r), f.now())
	return tidemill.Mark{Partition: where.Partition, Offset: where.Offset}, m, err
}

// forgottenFact names no run: it is about all of the key's. The recipe may have
// left the config.
func forgottenFact(r Forgetting) fact {
	a := fact{typ: tidemill.TypeRunForgotten, component: byForget,
		id:     tidemill.ID("forgotten", r.Recipe, r.Key, r.Cause.Source, r.Cause.ID),
		recipe: r.Recipe, key: r.Key, cause: r.Cause, chain: chain{Correlation: r.Correlation, Trace: r.Trace},
		data: tidemill.RunForgotten{Cause: r.Cause, Reason: r.Reason}}
	a.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: r.By}}
	return a
}

// forgotten is a run whose key has gone while its last attempt was ending: with
// that nobody knows it any more.
func forgotten(run *tidemill.Run) *tidemill.Run {
	r := *run
	r.State, r.Event, r.Plan = tidemill.RunCancelled, nil, nil
	if r.Cancel != nil {
		r.Reason = r.Cancel.Reason
	}
	return &r
}
