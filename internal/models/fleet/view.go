package fleet

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
)

// View has the state of each key of a fleet at one moment. It never changes.
type View struct {
	fleet  *ledger.Fleet
	config *config.Config
	now    time.Time
	cells  []cell // one for each key of the fleet
	states []api.KeyState
	ages   []age
}

// cell has the state of a key, and the age of its champion, as indexes.
type cell struct {
	state, age      uint8
	pinned, running bool
}

// newView computes the state of every key. A champion is stale after a time.
func newView(f *ledger.Fleet, c *config.Config, stale time.Duration, now time.Time) *View {
	v := &View{fleet: f, config: c, now: now, cells: make([]cell, f.Len()), states: api.KeyStates(), ages: ages()}
	before := now.Add(-stale).UnixMilli()
	for _, r := range f.Recipes {
		models := makesModels(c, r.Name)
		for i := r.From; i < r.To; i++ {
			k := f.At(i)
			state := State(&k, models || k.Model != "", before)
			v.cells[i] = cell{uint8(slices.Index(v.states, state)), uint8(ageOf(v.ages, &k, now)), k.Pinned, k.Running}
		}
	}
	return v
}

func makesModels(c *config.Config, recipe string) bool {
	r, known := c.Recipe(recipe)
	return known && r.Makes.Model != ""
}

// Seen reports whether a caller may see a key; nil means all keys.
type Seen func(recipe, key string) bool

func (s Seen) sees(f *ledger.Fleet, i int) bool {
	if s == nil {
		return true
	}
	k := f.At(i)
	return s(k.Recipe, k.Key)
}

// Count counts the keys of a recipe, or of all recipes if its name is empty. Recipes of the config
// without keys are counted too.
func (v *View) Count(recipe string, seen Seen) api.Fleet {
	all := api.Fleet{Recipes: []api.FleetRecipe{}}
	for _, name := range v.recipes(recipe) {
		r := v.countOne(name, seen)
		if _, known := v.config.Recipe(name); known || r.Total > 0 {
			all.Recipes = append(all.Recipes, r)
		}
	}
	all.Version = versionOf(all.Recipes)
	return all
}

// recipes returns the names of the selected recipes of the config and of the fleet.
func (v *View) recipes(only string) (names []string) {
	for i := range v.config.Recipes {
		names = append(names, v.config.Recipes[i].Name)
	}
	for _, r := range v.fleet.Recipes {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return only != "" && name != only })
}

func (v *View) countOne(name string, seen Seen) api.FleetRecipe {
	r := api.FleetRecipe{Recipe: name, Models: makesModels(v.config, name), States: make(map[api.KeyState]int, len(v.states))}
	states, of := make([]int, len(v.states)), make([]int, len(v.ages))
	from, to := 0, 0
	if i := slices.IndexFunc(v.fleet.Recipes, func(r ledger.FleetRecipe) bool { return r.Name == name }); i >= 0 {
		from, to = v.fleet.Recipes[i].From, v.fleet.Recipes[i].To
	}
	for i := from; i < to; i++ {
		if !seen.sees(v.fleet, i) {
			continue
		}
		c := v.cells[i]
		r.Total++
		states[c.state]++
		of[c.age]++
		r.Pinned += one(c.pinned)
		r.Running += one(c.running)
	}
	for i, s := range v.states {
		r.States[s] = states[i]
	}
	for i, a := range v.ages {
		r.Ages = append(r.Ages, api.FleetAge{Within: a.name, Keys: of[i]})
	}
	return r
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

// versionOf returns a text that differs for different contents.
func versionOf(content any) string {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(content) // texts and numbers can be encoded, and a hash takes all bytes
	return strconv.FormatUint(h.Sum64(), 36)
}

// Strip returns the state, or the age, of each key in the order of the keys.
func (v *View) Strip(recipe, by string, seen Seen) api.FleetStrip {
	s := api.FleetStrip{By: by, Runs: []api.StripRun{}}
	from, to := v.fleet.Of(recipe)
	for i := from; i < to; i++ {
		if !seen.sees(v.fleet, i) {
			continue
		}
		value := string(v.states[v.cells[i].state])
		if by == ByAge {
			value = v.ages[v.cells[i].age].name
		}
		if n := len(s.Runs); n > 0 && s.Runs[n-1].Value == value {
			s.Runs[n-1].Keys++
		} else {
			s.Runs = append(s.Runs, api.StripRun{Value: value, Keys: 1})
		}
		s.Total++
	}
	s.Version = versionOf(s.Runs)
	return s
}

// The values that a strip shows.
const (
	ByState = "state"
	ByAge   = "age"
)

// Views keeps the newest views, so that many pages cost one computation.
type Views struct {
	mu     sync.Mutex
	fleet  *ledger.Fleet
	config *config.Config
	tick   time.Time
	of     map[time.Duration]*View
}

const (
	// tick is how long a view is used while nothing changes but the ages.
	tick = 5 * time.Second
	// mostViews bounds the views for different ages.
	mostViews = 16
)

// View returns the view of a fleet, in which champions are stale after a time.
func (s *Views) View(f *ledger.Fleet, c *config.Config, stale time.Duration, now time.Time) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := now.Truncate(tick); s.fleet != f || s.config != c || !s.tick.Equal(at) || len(s.of) >= mostViews {
		s.fleet, s.config, s.tick, s.of = f, c, at, map[time.Duration]*View{}
	}
	if s.of[stale] == nil {
		s.of[stale] = newView(f, c, stale, now)
	}
	return s.of[stale]
}

// State returns the state of a key. The parameter models says whether its recipe makes models,
// and stale is the time before which a champion's run began too long ago, in Unix milliseconds.
func State(k *ledger.FleetKey, models bool, stale int64) api.KeyState {
	failed := k.Last == tidemill.RunFailed
	switch {
	case !models && failed:
		return api.KeyFailing
	case !models && k.Last == tidemill.RunSucceeded:
		return api.KeyFresh
	case !models:
		return api.KeyNone
	case k.NewestState == tidemill.VersionAwaiting:
		return api.KeyAwaiting
	case k.NewestState == tidemill.VersionRefused:
		return api.KeyRefused
	case failed && k.Failed > k.Registered:
		return api.KeyFailing
	case k.Unserved:
		return api.KeyUnserved
	case k.Champion == 0:
		return api.KeyNone
	case k.Drifted:
		return api.KeyDrifting
	case k.Began < stale:
		return api.KeyStale
	}
	return api.KeyFresh
}

// ages are the bounds of the ages of champions.
func ages() []age {
	const hour, day = time.Hour, 24 * time.Hour
	return []age{{"1h", hour}, {"6h", 6 * hour}, {"1d", day}, {"7d", 7 * day}, {"30d", 30 * day}, {older, 0}, {none, 0}}
}

// age is a greatest age with its name.
type age struct {
	name  string
	bound time.Duration
}

const older, none = "older", "none"

// ageOf returns the index of the age of a key's champion among all ages.
func ageOf(all []age, k *ledger.FleetKey, now time.Time) int {
	if k.Champion == 0 {
		return len(all) - 1
	}
	old := now.Sub(time.UnixMilli(k.Began))
	for i := range all[:len(all)-2] {
		if old <= all[i].bound {
			return i
		}
	}
	return len(all) - 2
}
