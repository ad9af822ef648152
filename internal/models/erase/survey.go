package erase

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// survey adds the key's present data to the note.
func (f *Forgetter) survey(ctx context.Context, n *note) error {
	b := belongingsOf(f.o.Config(), n.Key)
	if err := f.surveyRuns(ctx, n, &b); err != nil {
		return err
	}
	return f.surveyMade(ctx, n, &b)
}

// surveyMade notes the results of runs, and the dead letters.
func (f *Forgetter) surveyMade(ctx context.Context, n *note, b *belongings) error {
	if err := f.surveyModels(ctx, n, b); err != nil {
		return err
	}
	if err := f.surveyDatasets(ctx, n, b); err != nil {
		return err
	}
	return f.surveyLetters(ctx, n)
}

// surveyRuns looks up the makings of all recipes that the ledger knows, also of recipes that are no
// longer in the config. It skips a recipe whose runs were ended: its present runs belong to the
// key's next life.
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
		if !hasNoKey(f.o.Config(), r) {
			recipes[r] = true
		}
	}
	for r := range recipes {
		if n.hasEnded(r) {
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

func (n *note) addMaking(recipe string, m *fold.Making) {
	if m.Live == nil && m.Waiting == nil && len(m.Ended) == 0 && m.Next == 0 {
		return // no run was ever asked for
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

// surveyModels notes the models that the ledger has under the key, and models that a run of the key
// may be about to register.
func (f *Forgetter) surveyModels(ctx context.Context, n *note, b *belongings) error {
	for q := (ledger.ModelQuery{Key: n.Key}); ; {
		page, err := f.o.Ledger.Models(ctx, q)
		if err != nil {
			return fmt.Errorf("find the models of key %s: %w", n.Key, err)
		}
		for i := range page.Models {
			m := &page.Models[i]
			belongs, err := f.isOwned(ctx, m, n.Key)
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

// isOwned reports whether a model belongs to the key alone. A model that several keys make records
// only the last key.
func (f *Forgetter) isOwned(ctx context.Context, m *fold.Model, key string) (bool, error) {
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

// hasEnded reports whether the end of a recipe's runs is on the log.
func (n *note) hasEnded(recipe string) bool {
	return slices.ContainsFunc(n.Runs, func(r tidemill.GoneRuns) bool { return r.Recipe == recipe && r.At != unknownMark })
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

// Preview returns the receipt that a forgetting would leave now.
func (f *Forgetter) Preview(ctx context.Context, key string) (tidemill.KeyForgotten, error) {
	n := newNote(tidemill.KeyForgotten{Key: key, Asked: f.now()})
	if err := f.survey(ctx, n); err != nil {
		return tidemill.KeyForgotten{}, err
	}
	n.Remains = remainingPlaces(f.o.Config(), &n.KeyForgotten, f.o.Grace, f.now())
	return n.KeyForgotten, nil
}

// belongings holds the names that belong to a key by the config. The ledger has more names of the
// key.
type belongings struct {
	recipes  []string
	models   []model
	datasets []string
}

// model is a model and the recipe that makes it.
type model struct{ name, recipe string }

// belongingsOf reads the names from the config's templates. A name without {key} is shared and
// belongs to no key. A recipe without keys belongs to no key either: its runs have its name as
// their key.
func belongingsOf(c *config.Config, key string) (b belongings) {
	for i := range c.Recipes {
		r := &c.Recipes[i]
		if r.Key == config.KeyNone {
			continue
		}
		b.recipes = append(b.recipes, r.Name)
		if name, ok := ofKey(r, r.Makes.Model, key); ok {
			b.models = append(b.models, model{name, r.Name})
		}
		for _, template := range datasetsOf(r) {
			if name, ok := ofKey(r, template, key); ok && !slices.Contains(b.datasets, name) {
				b.datasets = append(b.datasets, name)
			}
		}
	}
	slices.Sort(b.datasets)
	return b
}

func datasetsOf(r *config.Recipe) []string {
	all := []string{r.Makes.Dataset}
	for i := range r.Inputs {
		all = append(all, r.Inputs[i].Dataset)
	}
	return all
}

// ofKey expands a template; false if the template has no key, or the result is not a valid name.
func ofKey(r *config.Recipe, template, key string) (name string, ok bool) {
	named := false
	name, err := config.Expand(template, func(field string) (string, bool) {
		switch field {
		case "key":
			named = true
			return key, true
		case "recipe":
			return r.Name, true
		case "team":
			return r.Team, r.Team != ""
		}
		return "", false
	})
	return name, named && err == nil && tidemill.CheckDataset(name) == nil
}

// isShared reports whether a template makes the same name for every event.
func isShared(template string) bool {
	shared := true
	_, err := config.Expand(template, func(field string) (string, bool) {
		shared = shared && (field == "recipe" || field == "team")
		return field, true
	})
	return shared && err == nil
}

// hasNoKey reports whether a recipe of the config has no keys: runs that have its name as their key
// belong to no key.
func hasNoKey(c *config.Config, recipe string) bool {
	r, known := c.Recipe(recipe)
	return known && r.Key == config.KeyNone
}

// remainingPlaces lists where data of a forgotten key can still be found: on streams until their
// retention ends, because a log cannot be rewritten, and in the store until a collection.
func remainingPlaces(c *config.Config, n *tidemill.KeyForgotten, grace time.Duration, now time.Time) (all []tidemill.Remains) {
	for _, s := range c.Streams {
		if s.Name != tidemill.StreamGroupOffsets { // it has no data of keys
			all = append(all, onStream(s.Name, s.Retention, now))
		}
	}
	for _, s := range c.Parked() {
		all = append(all, onStream(s.Name, s.Retention, now))
	}
	for _, s := range c.HeldFor() {
		held := onStream(s.Name, s.Retention, now)
		held.What = "its events of the stream " + s.From + " that had to wait until the scorer " + s.Scorer + " had a model in memory"
		all = append(all, held)
	}
	all = append(all, tidemill.Remains{Place: "the store", What: "the bytes of its data, versions, checkpoints and older runs' logs, which nothing names any more",
		Ends: "by the first collection (tidemill data gc) later than " + now.Add(grace).UTC().Format(time.RFC3339)})
	if len(n.Models) > 0 {
		all = append(all, tidemill.Remains{Place: "the ledger", What: "the names of its models, with the offsets after which a version counts again",
			Ends: "never: they follow from the facts"})
	}
	if len(n.Runs) > 0 {
		all = append(all, tidemill.Remains{Place: "machines that ran it", What: "files that they have fetched, by digest and without names, in their caches",
			Ends: "when the folder cache below their data folder is removed"})
	}
	return all
}

// wordsOf describes a key's data on a stream.
func wordsOf(stream string) string {
	switch stream {
	case tidemill.StreamFacts:
		return "what happened to its runs and models, with the causes of runs, and this receipt"
	case tidemill.StreamProgress:
		return "the progress of its runs"
	case tidemill.StreamDeadLetters:
		return "its dead letters, with their events, and their receipts"
	case tidemill.StreamCommands:
		return "commands about it, and the offset of its end"
	case tidemill.StreamClock:
		return "the ticks that were due for it"
	}
	if of, parked := tidemill.CutParked(stream); parked {
		return "its events of the stream " + of + " that had to wait; they are not delivered any more"
	}
	return "its events"
}

func onStream(stream string, retention time.Duration, now time.Time) tidemill.Remains {
	r := tidemill.Remains{Place: "stream " + stream, What: wordsOf(stream), Ends: "never: the stream does not expire"}
	if retention != config.Forever {
		r.Until = new(now.Add(retention).UTC().Truncate(time.Second))
		r.Ends = "by the stream's retention; Kafka removes whole segments, which can take a little longer"
	}
	return r
}
