package ledger

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tidemill.dev"
)

// Fleet is the list of all keys of all recipes at one moment: those with runs, and those with
// models. It never changes.
type Fleet struct {
	Version string        // text that is the same while the keys are the same
	Recipes []FleetRecipe // recipes with keys, by name
	keys    []fleetKey    // by recipe, then by key
}

// FleetRecipe has the keys from From up to To of the fleet.
type FleetRecipe struct {
	Name     string
	From, To int
}

// FleetKey is a recipe and a key, with the state of its runs and of its model. Its times are in
// Unix milliseconds.
type FleetKey struct {
	Recipe, Key string
	Model       string                // name of the model; empty if there is none with versions
	Champion    int                   // version of the champion; 0 if there is none
	Newest      int                   // newest version; 0 if there is none
	NewestState tidemill.VersionState // state of the newest version
	Registered  int64                 // time of the newest version's registration; 0 if there is none
	Began       int64                 // start of the champion's run; 0 if there is none
	Pinned      bool
	Unserved    bool              // whether a scorer reports that it cannot serve the champion
	Drifted     bool              // whether a figure of the champion has drifted
	Running     bool              // whether a run is live or waits
	Last        tidemill.RunState // state of the newest run that has ended; empty if there is none
	Failed      int64             // time of that run's end, if it failed
}

// fleetKey is a FleetKey as the fleet keeps it. One of the two may be nil.
type fleetKey struct {
	model *entry
	runs  *keyEntry
}

func (k fleetKey) key() string {
	if k.model != nil {
		return k.model.key
	}
	_, key, _ := strings.Cut(k.runs.name, "/")
	return key
}

// Len returns the number of keys.
func (f *Fleet) Len() int { return len(f.keys) }

// At returns a key by its index. The keys are ordered by recipe, then by key.
func (f *Fleet) At(i int) FleetKey {
	k := FleetKey{Key: f.keys[i].key()}
	if m := f.keys[i].model; m != nil {
		k.Recipe, k.Model, k.Champion, k.Newest, k.NewestState = m.recipe, m.name, int(m.champion), int(m.newest), m.state
		k.Registered, k.Began, k.Pinned, k.Unserved, k.Drifted = m.registered, m.began, m.pinned, m.unserved, m.drifted
	}
	if r := f.keys[i].runs; r != nil {
		k.Recipe, _, _ = strings.Cut(r.name, "/")
		k.Running, k.Last, k.Failed = r.running, r.last, r.ended
	}
	return k
}

// Of returns the keys of a recipe as indexes from from up to to. An empty name means all recipes.
func (f *Fleet) Of(recipe string) (from, to int) {
	if recipe == "" {
		return 0, len(f.keys)
	}
	i, found := slices.BinarySearchFunc(f.Recipes, recipe, func(r FleetRecipe, name string) int { return strings.Compare(r.Name, name) })
	if !found {
		return 0, 0
	}
	return f.Recipes[i].From, f.Recipes[i].To
}

// All returns all keys of a recipe with their indexes. An empty name means all recipes.
func (f *Fleet) All(recipe string) iter.Seq2[int, FleetKey] {
	return func(yield func(int, FleetKey) bool) {
		from, to := f.Of(recipe)
		for i := from; i < to; i++ {
			if !yield(i, f.At(i)) {
				return
			}
		}
	}
}

// fleetCache keeps the newest fleet.
type fleetCache struct {
	mu  sync.Mutex
	of  [3]string // id of the filling, because the offsets of another log may be the same, and versions of the registers
	now *Fleet
}

// Fleet returns the list of all keys. It reads only the partitions that have changed since the
// last call, and joins the keys with their models only if any has.
func (l *Ledger) Fleet(ctx context.Context) (*Fleet, error) {
	fill := l.Filling() // first, because it changes after the registers are stale
	models, modelsAt, err := l.register.allEntries(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("list the models of the fleet: %w", err)
	}
	keys, keysAt, err := l.keyRegister.allEntries(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("list the keys of the fleet: %w", err)
	}
	l.fleet.mu.Lock()
	defer l.fleet.mu.Unlock()
	if of := [3]string{fill, modelsAt, keysAt}; l.fleet.now == nil || l.fleet.of != of {
		l.fleet.of, l.fleet.now = of, joinFleet(models, keys)
		h := fnv.New64a()
		_, _ = h.Write([]byte(strings.Join(of[:], "/")))
		l.fleet.now.Version = strconv.FormatUint(h.Sum64(), 36)
	}
	return l.fleet.now, nil
}

// joinFleet joins makings with the models of the same recipe and key.
func joinFleet(models []entry, keys []keyEntry) *Fleet {
	f := &Fleet{keys: make([]fleetKey, 0, max(len(models), len(keys)))}
	modelsOf, keysOf := map[string][]*entry{}, map[string][]*keyEntry{}
	for i := range models {
		modelsOf[models[i].recipe] = append(modelsOf[models[i].recipe], &models[i])
	}
	for i := range keys {
		recipe, _, _ := strings.Cut(keys[i].name, "/")
		keysOf[recipe] = append(keysOf[recipe], &keys[i])
	}
	for recipe := range modelsOf {
		if _, also := keysOf[recipe]; !also {
			keysOf[recipe] = nil
		}
	}
	for recipe := range keysOf {
		f.Recipes = append(f.Recipes, FleetRecipe{Name: recipe})
	}
	slices.SortFunc(f.Recipes, func(a, b FleetRecipe) int { return strings.Compare(a.Name, b.Name) })
	for i := range f.Recipes {
		r := &f.Recipes[i]
		r.From = len(f.keys)
		f.keys = appendJoined(f.keys, modelsOf[r.Name], keysOf[r.Name])
		r.To = len(f.keys)
	}
	return f
}

// appendJoined appends the keys of one recipe, by key. The models are in the order of their names,
// which usually is that of their keys, and then sorting them takes no time.
func appendJoined(all []fleetKey, models []*entry, keys []*keyEntry) []fleetKey {
	slices.SortStableFunc(models, func(a, b *entry) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(b.registered, a.registered))
	})
	// A key has several models if the config's name of them has changed. The newest counts.
	models = slices.CompactFunc(models, func(a, b *entry) bool { return a.key == b.key })
	for len(models) > 0 || len(keys) > 0 {
		var k fleetKey
		order := 0
		switch {
		case len(models) == 0:
			order = 1
		case len(keys) == 0:
			order = -1
		default:
			order = strings.Compare(models[0].key, fleetKey{runs: keys[0]}.key())
		}
		if order <= 0 {
			k.model, models = models[0], models[1:]
		}
		if order >= 0 {
			k.runs, keys = keys[0], keys[1:]
		}
		all = append(all, k)
	}
	return all
}
