package erase

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
)

// survey notes what there is of the key now, beside what was noted before.
func (f *Forgetter) survey(ctx context.Context, n *note) error {
	b := belongingsOf(f.o.Config(), n.Key)
	if err := f.surveyRuns(ctx, n, &b); err != nil {
		return err
	}
	return f.surveyMade(ctx, n, &b)
}

// surveyMade notes what runs have made, and what could not be delivered.
func (f *Forgetter) surveyMade(ctx context.Context, n *note, b *belongings) error {
	if err := f.surveyModels(ctx, n, b); err != nil {
		return err
	}
	if err := f.surveyDatasets(ctx, n, b); err != nil {
		return err
	}
	return f.surveyLetters(ctx, n)
}

// surveyRuns looks into the makings of all recipes that the ledger knows, also
// of those that have left the config. One that has had its end is left alone:
// what it has now is of the key's next life.
func (f *Forgetter) surveyRuns(ctx context.Context, n *note, b *belongings) error {
	recipes := map[string]bool{}
	for _, r := range b.recipes {
		recipes[r] = true
	}
	counts, err := f.o.Ledger.Counts(ctx)
	if err != nil {
		return fmt.Errorf("find the runs of key %s: %w", n.Key, err)
	}
	for r := range counts {
		if !keyless(f.o.Config(), r) {
			recipes[r] = true
		}
	}
	for r := range recipes {
		if n.ended(r) {
			continue
		}
		m, err := f.o.Ledger.Making(ctx, r, n.Key)
		if err != nil {
			return fmt.Errorf("find the runs of key %s: %w", n.Key, err)
		}
		n.addMaking(r, m)
	}
	return nil
}

func (n *note) addMaking(recipe string, m *tidemill.Making) {
	if m.Live == nil && m.Waiting == nil && len(m.Ended) == 0 && m.Next == 0 {
		return // nothing was ever asked for
	}
	n.runsOf(recipe)
	for _, r := range []*tidemill.Run{m.Live, m.Waiting} {
		if r != nil {
			n.addRun(recipe, r.ID)
		}
	}
	for _, id := range m.Ended {
		n.addRun(recipe, id)
	}
}

// surveyModels takes those that the ledger has under the key, and those that a
// run of the key may be about to register.
func (f *Forgetter) surveyModels(ctx context.Context, n *note, b *belongings) error {
	for q := (ledger.ModelQuery{Key: n.Key}); ; {
		page, err := f.o.Ledger.Models(ctx, q)
		if err != nil {
			return fmt.Errorf("find the models of key %s: %w", n.Key, err)
		}
		for i := range page.Models {
			m := &page.Models[i]
			belongs, err := f.belongs(ctx, m, n.Key)
			if err != nil {
				return fmt.Errorf("find the models of key %s: %w", n.Key, err)
			}
			if belongs {
				n.addModel(tidemill.GoneModel{Model: m.Name, Versions: len(m.Versions)})
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	for _, m := range b.models {
		known, err := f.o.Ledger.Model(ctx, m.name)
		if err != nil {
			return fmt.Errorf("find the models of key %s: %w", n.Key, err)
		}
		if n.hasRuns(m.recipe) || len(known.Versions) > 0 {
			n.addModel(tidemill.GoneModel{Model: m.name, Versions: len(known.Versions)})
		}
	}
	return nil
}

// belongs reports whether a model is the key's alone: one that several keys make
// bears only the last of them.
func (f *Forgetter) belongs(ctx context.Context, m *tidemill.Model, key string) (bool, error) {
	if !m.Retired.IsZero() {
		return false, nil
	}
	if r, known := f.o.Config().Recipe(m.Recipe); known && (r.Key == config.KeyNone || isShared(r.Makes.Model)) {
		return false, nil
	}
	versions, err := f.o.Ledger.Versions(ctx, m.Name)
	others := slices.ContainsFunc(versions, func(v ledger.VersionRecord) bool { return v.Key != key })
	return err == nil && !others, err
}

func (n *note) hasRuns(recipe string) bool {
	return slices.ContainsFunc(n.Runs, func(r tidemill.GoneRuns) bool { return r.Recipe == recipe })
}

// ended reports whether a recipe has had its end on the log.
func (n *note) ended(recipe string) bool {
	return slices.ContainsFunc(n.Runs, func(r tidemill.GoneRuns) bool { return r.Recipe == recipe && r.At != nowhere })
}

func (f *Forgetter) surveyDatasets(ctx context.Context, n *note, b *belongings) error {
	for _, name := range b.datasets {
		found, err := f.o.Store.CountDataset(ctx, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("find the datasets of key %s: %w", n.Key, err)
		}
		if found.Commits > 0 {
			n.addDataset(tidemill.GoneDataset{Dataset: name, Branches: found.Branches, Commits: found.Commits})
		}
	}
	return nil
}

func (f *Forgetter) surveyLetters(ctx context.Context, n *note) error {
	all, _, err := f.lettersOf(ctx, n.Key)
	n.Letters = max(n.Letters, len(all))
	return err
}

// Preview is the receipt that a forgetting would leave now.
func (f *Forgetter) Preview(ctx context.Context, key string) (tidemill.KeyForgotten, error) {
	n := newNote(tidemill.KeyForgotten{Key: key, Asked: f.now()})
	if err := f.survey(ctx, n); err != nil {
		return tidemill.KeyForgotten{}, err
	}
	n.Remains = remains(f.o.Config(), &n.KeyForgotten, f.o.Grace, f.now())
	return n.KeyForgotten, nil
}
