package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

// work is a version on its way from its run's end to its verdict.
type work struct {
	*tidemill.Candidate
	result tidemill.Result // of the run
	chain  chain           // after run.finished
	report *tidemill.Report
}

// newWork reads a run's end; nil where it makes no version.
func newWork(v *broker.View) (*work, error) {
	var d tidemill.RunFinished
	if err := json.Unmarshal(v.Data, &d); err != nil {
		return nil, hopelessf("read the end of a run, event %s: %w", v.ID, err)
	}
	c := d.Candidate
	if d.Outcome != tidemill.OutcomeSucceeded || c == nil {
		return nil, nil
	}
	if err := tidemill.CheckDataset(c.Model); err != nil || c.Run == "" || c.Recipe == "" || c.Key == "" {
		return nil, hopelessf("read the end of run %s: what it made is for model %q, which is none, or nobody can tell whose it is (%v)", c.Run, c.Model, err)
	}
	if d.Artifact == "" {
		return nil, hopelessf("read the end of run %s: it made nothing that could be a version of model %s", c.Run, c.Model)
	}
	return &work{Candidate: c, result: d.Result, chain: after(v)}, nil
}

// foldingFor is how long a run's end is waited for that is on the log, and that
// the ledger does not know yet.
const foldingFor = 5 * time.Second

// counts reports whether the log took an attempt's success for the run's. It may
// have come behind the word of a controller that took the attempt for lost; then
// another attempt makes the version, and this one's is nobody's.
//
// A run that the ledger names no more counts: ten newer ones have ended since, or
// its key has gone. The model's own fold keeps out what is too old.
func (r *Registrar) counts(ctx context.Context, w *work) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, foldingFor)
	defer cancel()
	for {
		changed := r.o.Ledger.Changed()
		run, err := r.o.Ledger.Run(ctx, w.Run)
		if errors.Is(err, ledger.ErrUnknown) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look up run %s, which made a version of model %s: %w", w.Run, w.Model, err)
		}
		if is, known := taken(run, w.Attempt); known {
			return is, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, fmt.Errorf("wait for the end of run %s, which is %s: %w: %w", w.Run, run.State, ErrCatchingUp, context.Cause(ctx))
		}
	}
}

// taken reports whether a run has succeeded by one of its attempts, if that is
// known.
func taken(run *tidemill.Run, attempt int) (is, known bool) {
	n := len(run.Attempts)
	switch {
	case run.State.Ended():
		return run.State == tidemill.RunSucceeded && n > 0 && run.Attempts[n-1].Number == attempt, true
	case n < attempt, n == attempt && run.State == tidemill.RunRunning:
		return false, false
	}
	return false, true
}
