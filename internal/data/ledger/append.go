package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Append puts a fact on the log and returns where it lies and the making that
// the log gave it, all facts before and perhaps some behind it folded in. The
// view needs Type, Subject (the key), ID, Source, the recipe's attribute and
// data; its record key is set here.
//
// While Redis does not hold all facts it waits, as long as the context allows.
// Then the error is an [AppendedError]: the fact counts all the same.
func (l *Ledger) Append(ctx context.Context, v *broker.View) (broker.Position, *tidemill.Making, error) {
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	if recipe == "" || typeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that runs have, or it names no recipe", v.ID, v.Type)
	}
	member := tidemill.RunKey(recipe, v.Subject)
	v.Key = []byte(member)
	at, m, err := appended[tidemill.Making](ctx, l, v, place{hashMakings, member})
	if m != nil && m.Next == 0 {
		m.Recipe, m.Key = recipe, v.Subject
	}
	return at, m, err
}

// AppendModel is Append for the facts of a model. The view needs the model's
// attribute besides what Append says, and of the recipe's none.
func (l *Ledger) AppendModel(ctx context.Context, v *broker.View) (broker.Position, *tidemill.Model, error) {
	name, _ := v.Attribute(tidemill.AttrModel)
	if modelTypeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that decides about models", v.ID, v.Type)
	}
	if err := tidemill.CheckDataset(name); err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: its model's name %q: %w", v.ID, name, err)
	}
	v.Key = []byte(tidemill.ModelKey(name))
	at, m, err := appended[tidemill.Model](ctx, l, v, place{hashModels, name})
	if m != nil {
		m.Name = name
	}
	return at, m, err
}

// appended publishes a fact and waits until it has been folded in.
func appended[T any](ctx context.Context, l *Ledger, v *broker.View, of place) (broker.Position, *T, error) {
	receipt, err := l.o.Producer.Publish(ctx, tidemill.StreamFacts, v)
	if err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: %w", v.ID, err)
	}
	at, placed := receipt.Position(), receipt.Offset >= 0
	if !placed {
		if at, err = l.end(ctx, at); err != nil {
			return at, nil, &AppendedError{at, err}
		}
	}
	w, state := l.progress.await(at.Partition, at.Offset, of)
	if w != nil && placed {
		l.offer(v, at)
	}
	state, err = l.outcome(ctx, w, state, at, of)
	if err != nil {
		return at, nil, &AppendedError{at, err}
	}
	m := new(T)
	if state == nil {
		return at, m, nil
	}
	if err := json.Unmarshal(state, m); err != nil {
		return at, nil, &AppendedError{at, fmt.Errorf("read what %s of %s is: %w", of.hash, of.member, err)}
	}
	return at, m, nil
}

// end stands for the place of a fact of which Kafka knows only that it has it.
func (l *Ledger) end(ctx context.Context, at broker.Position) (broker.Position, error) {
	ends, err := l.ends(ctx)
	at.Offset = ends[at.Partition] - 1
	return at, err
}

// outcome waits until a fact has been folded in, if there is a waiter for it, and is
// what became of what it is about; nil if that is nothing.
func (l *Ledger) outcome(ctx context.Context, w *waiter, state []byte, at broker.Position, of place) ([]byte, error) {
	if w != nil {
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx)), l.progress.giveUp(at.Partition, w))
		}
		if w.err != nil {
			return nil, w.err
		}
		state = w.state
	}
	if state == nil {
		return l.folded(ctx, at, of)
	}
	return state, nil
}

// folded reads what another process has folded the fact into. If Redis has
// forgotten that meanwhile, it waits until it knows it again.
func (l *Ledger) folded(ctx context.Context, at broker.Position, of place) ([]byte, error) {
	for {
		changed := l.progress.changes()
		next, state, err := readState(ctx, l.o.Redis, l.prefix, at.Partition, of)
		switch {
		case err != nil:
			return nil, err
		case next > at.Offset:
			return state, nil
		}
		l.doubt.raise()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx))
		}
	}
}
