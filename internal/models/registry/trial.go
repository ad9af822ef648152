package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// ErrNoTrial reports that a version is not on trial any more.
var ErrNoTrial = errors.New("the version is not on trial")

// Conclusion is the end of a trial.
type Conclusion struct {
	Verdict  tidemill.TrialVerdict
	Clauses  []tidemill.Clause // clauses of the trial with their results
	Sentence string            // the verdict in words
}

// Conclude proposes the end of a trial, and announces the version's promotion or refusal. The log accepts the
// first end of a trial, and only if the champion is the one that the candidate was compared with: otherwise the
// error is ErrMoved.
func (r *Registrar) Conclude(ctx context.Context, v *ledger.VersionRecord, c Conclusion) (*fold.Model, error) {
	m, err := r.conclude(ctx, v, c)
	if err != nil {
		return nil, fmt.Errorf("end the trial of %s: %w", tidemill.VersionName(v.Model, v.Number), err)
	}
	return m, nil
}

func (r *Registrar) conclude(ctx context.Context, v *ledger.VersionRecord, c Conclusion) (*fold.Model, error) {
	m, err := r.o.Ledger.Model(ctx, v.Model)
	if err != nil {
		return nil, err
	}
	switch h := m.Find(v.Number); {
	case h == nil || h.State != tidemill.VersionTrial:
		return nil, ErrNoTrial
	case m.Champion != c.Verdict.Champion:
		return nil, fmt.Errorf("%w: the candidate was compared with version %d, and version %d is the champion now", ErrMoved, c.Verdict.Champion, m.Champion)
	}
	f := r.concludedFact(m, v, c)
	r.step(toPropose)
	ours, m, err := r.publish(ctx, f)
	if err != nil {
		return nil, err
	}
	if h := m.Find(v.Number); h != nil && h.State == tidemill.VersionTrial {
		return nil, ErrMoved
	}
	return r.announce(ctx, m, ours, func(o fold.Owed) bool { return o.Version == v.Number })
}

func (r *Registrar) concludedFact(m *fold.Model, v *ledger.VersionRecord, c Conclusion) *fact {
	var j tidemill.Judgement
	if v.Judgement != nil {
		j = *v.Judgement
	}
	j.Clauses = append(slices.Clone(j.Clauses), c.Clauses...)
	j.Passed, j.Sentence, j.Trial, j.Against = c.Verdict.Outcome == tidemill.TrialPassed, c.Sentence, &c.Verdict, m.Champion
	if j.Passed {
		j.Hold = holdReason(v.Judge.Promote, &v.Origin, r.o.Asked())
	}
	registered := tidemill.Cause{Source: r.o.Names.Source(byPromote), ID: tidemill.ID("registered", v.Model, v.Run)}
	return &fact{typ: tidemill.TypeModelPromotionProposed, id: tidemill.ID("concluded", m.Name, v.Run, strconv.FormatInt(m.Turn, 10)),
		source: r.o.Names.Source(byTrial), model: m.Name, key: m.Key, version: v.Number, recipe: v.Recipe, run: v.Run,
		chain: chain{cause: registered, correlation: registered.ID},
		data: tidemill.PromotionProposed{Action: tidemill.ActionConclude, Version: v.Number, Run: v.Run, Basis: m.Champion, Turn: m.Turn,
			Hold: j.Hold, Canary: v.Judge.Canary, Judgement: &j, Origin: &v.Origin, Artifact: v.Artifact}}
}
