package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// PersonChange is a change of a champion, or a pin, that a person has asked for.
type PersonChange struct {
	Model string
	fold.Change
}

// PersonPlace is a place in the list of these changes, which has the newest first, and those of one time by their models.
// The zero place is the beginning.
type PersonPlace struct {
	At    time.Time
	Model string // model of the last change that was listed; empty if all changes of this time were
}

// Precedes reports whether a change comes after the place.
func (p PersonPlace) Precedes(c *PersonChange) bool {
	return p.At.IsZero() || c.At.Before(p.At) || p.Model != "" && c.At.Equal(p.At) && c.Model > p.Model
}

const personModels = 200 // models that are read at once

// PersonChanges returns changes that people have asked for, newest first, from a place on. It returns at most limit changes, of models that the caller may see. A model keeps its
// newest changes only, and of its pins only the present one.
func (l *Ledger) PersonChanges(ctx context.Context, from PersonPlace, limit int, seen func(recipe, key string) bool) ([]PersonChange, error) {
	all, _, err := l.register.allEntries(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("list the changes by people: %w", err)
	}
	var touched []entry
	for i := range all {
		if all[i].touched > 0 && (seen == nil || seen(all[i].recipe, all[i].key)) {
			touched = append(touched, all[i])
		}
	}
	slices.SortFunc(touched, func(a, b entry) int { return cmp.Compare(b.touched, a.touched) })
	var found []PersonChange
	for some := range slices.Chunk(touched, personModels) {
		if len(found) == limit && found[limit-1].At.UnixMilli() > some[0].touched {
			break
		}
		more, err := l.readPersonChanges(ctx, some, from)
		if err != nil {
			return nil, fmt.Errorf("list the changes by people: %w", err)
		}
		found = append(found, more...)
		slices.SortFunc(found, func(a, b PersonChange) int {
			return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Model, b.Model))
		})
		found = found[:min(len(found), limit)]
	}
	return found, nil
}

func (l *Ledger) readPersonChanges(ctx context.Context, some []entry, from PersonPlace) (all []PersonChange, err error) {
	names := make([]string, len(some))
	for i := range some {
		names[i] = some[i].name
	}
	models, err := parseStates[fold.Model](ctx, l, hashModels, names)
	if err != nil {
		return nil, err
	}
	for _, m := range models {
		for _, c := range changesByPeople(m) {
			if one := (PersonChange{m.Name, c}); from.Precedes(&one) {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// changesByPeople returns the changes of a model that people have asked for. A pin of the champion is no
// change of the champion, so it is added.
func changesByPeople(m *fold.Model) (all []fold.Change) {
	for _, c := range m.Changes {
		if c.Action.OfPeople() {
			all = append(all, c)
		}
	}
	if p := m.Pin; p != nil && !slices.ContainsFunc(all, func(c fold.Change) bool { return c.Action == tidemill.ActionPin && c.At.Equal(p.At) }) {
		all = append(all, fold.Change{At: p.At, Action: tidemill.ActionPin, Version: m.Champion, Before: m.Champion, By: p.By, Reason: p.Reason})
	}
	return all
}
