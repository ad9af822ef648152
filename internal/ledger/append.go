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
	receipt, err := l.o.Producer.Publish(ctx, tidemill.StreamFacts, v)
	if err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: %w", v.ID, err)
	}
	at := broker.Position(receipt)
	if at.Offset < 0 {
		if at, err = l.end(ctx, at); err != nil {
			return at, nil, &AppendedError{at, err}
		}
	}
	m, err := l.outcome(ctx, at, member)
	if err != nil {
		return at, nil, &AppendedError{at, err}
	}
	if m.Next == 0 {
		m.Recipe, m.Key = recipe, v.Subject
	}
	return at, m, nil
}

// end stands for the place of a fact of which Kafka knows only that it has it.
func (l *Ledger) end(ctx context.Context, at broker.Position) (broker.Position, error) {
	ends, err := l.ends(ctx)
	at.Offset = ends[at.Partition] - 1
	return at, err
}

// outcome waits until a fact has been folded in.
func (l *Ledger) outcome(ctx context.Context, at broker.Position, member string) (*tidemill.Making, error) {
	w, making := l.progress.await(at.Partition, at.Offset, member)
	if w != nil {
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx)), l.progress.giveUp(at.Partition, w))
		}
		if w.err != nil {
			return nil, w.err
		}
		making = w.making
	}
	if making == nil {
		return l.folded(ctx, at, member)
	}
	m := &tidemill.Making{}
	if err := json.Unmarshal(making, m); err != nil {
		return nil, fmt.Errorf("read the making of %s: %w", member, err)
	}
	return m, nil
}

// folded reads a making that another process has folded the fact into. If Redis
// has forgotten that meanwhile, it waits until it knows it again.
func (l *Ledger) folded(ctx context.Context, at broker.Position, member string) (*tidemill.Making, error) {
	for {
		changed := l.progress.changes()
		places, all, err := readMakings(ctx, l.o.Redis, l.prefix, []*part{{partition: at.Partition}}, []string{member})
		switch {
		case err != nil:
			return nil, err
		case number(places[0]) > at.Offset:
			return all[0], nil
		}
		l.doubt.raise()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx))
		}
	}
}
