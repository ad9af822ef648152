package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// announce tells of what the log has accepted, up to the last that is wanted: who
// hears of a model shall hear of its changes in their order. What others have
// announced meanwhile is left out; what they announce at the same time stands on
// the log twice, under one id. ours is the proposal that we have made ourselves,
// if any, and need not read.
func (r *Registrar) announce(ctx context.Context, m *tidemill.Model, ours said, wanted func(tidemill.Owed) bool) (*tidemill.Model, error) {
	todo := slices.Clone(m.Owed)
	for len(todo) > 0 && !wanted(todo[len(todo)-1]) {
		todo = todo[:len(todo)-1]
	}
	for _, o := range todo {
		if !slices.ContainsFunc(m.Owed, func(x tidemill.Owed) bool { return x.Proposal == o.Proposal && x.Type == o.Type }) {
			continue
		}
		f, err := r.announcement(ctx, m, o, ours)
		if err != nil {
			return nil, fmt.Errorf("announce what became of proposal %s for model %s: %w", o.Proposal, m.Name, err)
		}
		r.step(toAnnounce)
		if _, m, err = r.put(ctx, f); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// announcement is the fact that tells of an accepted proposal. It comes from
// where the proposal came from, whoever writes it: an event is known by its
// source and its id.
func (r *Registrar) announcement(ctx context.Context, m *tidemill.Model, o tidemill.Owed, ours said) (*fact, error) {
	v := &ours.view
	if ours.at != o.At || v.ID != o.Proposal {
		found, err := r.factAt(ctx, o.At)
		if err != nil {
			return nil, err
		}
		v = found
	}
	var p tidemill.PromotionProposed
	if err := json.Unmarshal(v.Data, &p); err != nil {
		return nil, hopelessf("read the proposal: %w", err)
	}
	j := p.Judgement
	if p.Action == tidemill.ActionJudge { // the log may have had a word to add
		kept, err := r.record(ctx, m.Name, o.Version)
		if err != nil {
			return nil, err
		}
		if kept != nil && kept.Judgement != nil {
			j = kept.Judgement
		}
	}
	f := &fact{typ: o.Type, id: tidemill.ID("announced", o.Proposal, o.Type), source: v.Source, model: m.Name, key: v.Subject,
		version: o.Version, by: o.By, chain: after(v),
		data: tidemill.ModelAnnounced{Proposal: o.Proposal, Version: o.Version, Champion: o.Champion, Artifact: p.Artifact,
			Before: o.Before, Turn: o.Turn, Reason: p.Reason, Judgement: j, Origin: p.Origin}}
	f.recipe, _ = v.Attribute(tidemill.AttrRecipe)
	f.run, _ = v.Attribute(tidemill.AttrRun)
	return f, nil
}

// factAt reads a fact that the log has.
func (r *Registrar) factAt(ctx context.Context, at tidemill.Mark) (found *broker.View, err error) {
	from := broker.Position{Stream: tidemill.StreamFacts, Partition: at.Partition, Offset: at.Offset}
	var torn error
	_, err = r.o.Broker.Read(ctx, from, 1, func(e *broker.Incoming) bool {
		if e.Offset == at.Offset {
			v := e.View.Clone()
			found, torn = &v, e.Err
		}
		return e.Offset < at.Offset
	})
	switch {
	case err != nil || torn != nil:
		return nil, cmp.Or(err, torn)
	case found == nil:
		return nil, fmt.Errorf("stream %s, partition %d has nothing at offset %d any more", from.Stream, from.Partition, from.Offset)
	}
	return found, nil
}
