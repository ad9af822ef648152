package registry

import (
	"context"
	"fmt"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// Settle proposes the end of a canary: its promotion if the judgement has passed, else its refusal. It does nothing if
// the version is not the canary any more, and a second call changes nothing.
func (r *Registrar) Settle(ctx context.Context, model string, version int, j tidemill.Judgement) error {
	m, err := r.o.Ledger.Model(ctx, model)
	if err != nil || m.Canary == nil || m.Canary.Version != version {
		return err
	}
	v, err := r.record(ctx, model, version)
	if err != nil || v == nil {
		return err
	}
	p := tidemill.PromotionProposed{Action: tidemill.ActionSettle, Version: version, Run: v.Run, Basis: m.Champion, Turn: m.Turn, Judgement: &j, Origin: &v.Origin, Artifact: v.Artifact}
	if j.Passed {
		p.Hold = holdReason(v.Judge.Promote, &v.Origin, r.o.Asked())
	}
	id := tidemill.ID("settled", model, v.Run, strconv.FormatInt(m.Turn, 10))
	s, now, err := r.publish(ctx, &fact{typ: tidemill.TypeModelPromotionProposed, id: id, source: r.o.Names.Source(byPromote), model: model, key: m.Key,
		version: version, recipe: v.Recipe, run: v.Run, chain: chain{correlation: id}, data: p})
	if err != nil {
		return fmt.Errorf("settle the canary of model %s: %w", model, err)
	}
	_, err = r.announce(ctx, now, s, func(o fold.Owed) bool { return o.Proposal == id })
	return err
}
