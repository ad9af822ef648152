package train

import (
	"fmt"
	"slices"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions"
	"tidemill.dev/internal/runs"
	"tidemill.dev/triggers/match"
)

// rules are what a recipe wants of events.
type rules struct {
	recipe config.Recipe
	where  []*match.Filter // of each entry; nil is every event of its types
}

// compiled keeps the rules of the config in force.
type compiled struct {
	mu    sync.Mutex
	from  *config.Config
	rules *rules
	err   error
}

func (c *compiled) of(now *config.Config, recipe string) (*rules, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from != now {
		c.from = now
		c.rules, c.err = compile(now, recipe)
	}
	return c.rules, c.err
}

func compile(c *config.Config, recipe string) (*rules, error) {
	r, ok := c.Recipe(recipe)
	if !ok {
		return nil, fmt.Errorf("%w; if the config was changed just now, this passes", runs.ErrNoRecipe)
	}
	all := &rules{recipe: r, where: make([]*match.Filter, len(r.When))}
	for i, w := range r.When {
		if w.Where == "" {
			continue
		}
		var err error
		if all.where[i], err = match.Compile(w.Where); err != nil {
			return nil, functions.Permanent(fmt.Errorf("entry %d of its when: %w", i+1, err)) // a config that was loaded has none
		}
	}
	return all, nil
}

// choose is the entry that an event asks by: of several that match the most
// impatient, for somebody wants the run that soon, and of those the first. On
// which stream the event came is not known here, so an entry that takes all of a
// stream's types is taken to match.
func (r *rules) choose(v *broker.View) (w config.RecipeWhen, found bool) {
	for i, one := range r.recipe.When {
		if len(one.Types) > 0 && !slices.Contains(one.Types, v.Type) || r.where[i] != nil && !r.where[i].Match(v) {
			continue
		}
		if !found || one.Debounce < w.Debounce {
			w, found = one, true
		}
	}
	return w, found
}

// keyOf is the key that an event asks for. That of a schedule's tick is its
// subject, whatever the events of others have.
func (r *rules) keyOf(v *broker.View, w config.RecipeWhen) (string, error) {
	place := r.recipe.Key
	switch {
	case place == config.KeyNone:
		return r.recipe.Name, nil
	case w.Schedule != "":
		place = config.KeySubject
	}
	key, ok := runs.Field(v, place)
	if !ok {
		return "", fmt.Errorf("event %s from %s has no key: there is no text at %s; publish it with one, or change `key` of the recipe", v.ID, v.Source, place)
	}
	if err := runs.CheckKey(key); err != nil {
		return "", fmt.Errorf("event %s from %s: what stands at %s: %w", v.ID, v.Source, place, err)
	}
	return key, nil
}
