package registry

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"tidemill.dev"
	"tidemill.dev/internal/data/store"
)

// again asks for a run anew of which the version was refused because it was
// measured beside a champion that is none any more: what is newest shall not be
// lost to a race. One that has come since has newer data.
func (r *Registrar) again(ctx context.Context, w *work, m *tidemill.Model, number int) error {
	h := m.Find(number)
	if r.o.Again == nil || h == nil || h.State != tidemill.VersionRefused || newer(m, h) {
		return nil
	}
	v, err := r.record(ctx, m.Name, number)
	if err != nil || v == nil || v.Judgement == nil || !lostRace(v.Judgement, w.Judge.On) {
		return err
	}
	report, err := r.reported(ctx, w, number)
	if err != nil || w.Champion != nil && report.Champion == nil {
		return err // its trainer measures no champion, and would measure none again
	}
	if there, err := r.thereIs(ctx, m.Name, m.Champion); err != nil || !there {
		return err // a run would be given none again, and would be asked for again for ever
	}
	err = r.o.Again(ctx, Lost{Run: w.Run, Cause: w.chain.cause, Correlation: w.chain.correlation, Trace: w.chain.trace})
	if err != nil {
		return fmt.Errorf("ask for run %s again, whose version %d was measured beside a champion that is none any more: %w", w.Run, number, err)
	}
	return nil
}

// thereIs reports whether the files of a version are in the store, so that a run
// can be given them.
func (r *Registrar) thereIs(ctx context.Context, model string, number int) (bool, error) {
	v, err := r.record(ctx, model, number)
	if err != nil || v == nil {
		return false, err
	}
	_, err = r.o.Store.TreeRef(ctx, v.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for the files of %s: %w", tidemill.VersionName(model, number), err)
	}
	return true, nil
}

// newer reports whether there is a version whose run began later.
func newer(m *tidemill.Model, than *tidemill.Held) bool {
	return slices.ContainsFunc(m.Versions, func(h tidemill.Held) bool {
		if h.Mark.Partition == than.Mark.Partition {
			return h.Mark.Offset > than.Mark.Offset
		}
		return h.Began.After(than.Began)
	})
}

// lostRace reports whether a version was refused for nothing but that the
// champion has changed since its run was given one to measure. What it failed by
// itself it would fail again.
func lostRace(j *tidemill.Judgement, on tidemill.GateOn) bool {
	if j.Passed || j.Against == 0 || j.Beside == j.Against || on == tidemill.GateOnRecorded {
		return false
	}
	failed := 0
	for _, c := range j.Clauses {
		switch {
		case c.Passed:
		case !namesChampion.MatchString(c.Text):
			return false
		default:
			failed++
		}
	}
	return failed > 0
}

// namesChampion finds the clauses that are held against a champion.
var namesChampion = regexp.MustCompile(`\bchampion\b`)
