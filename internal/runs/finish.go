package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/ledger"
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
func (f *Foreman) conclude(ctx context.Context, run *tidemill.Run, component string, d tidemill.RunFinished) (*tidemill.Making, error) {
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
func (f *Foreman) asItIs(ctx context.Context, m *tidemill.Making, id string) (*tidemill.Run, error) {
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
