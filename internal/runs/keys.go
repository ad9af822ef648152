package runs

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev/config"
)

// Keys are the keys for which a schedule ticks that has `each: key`: those that
// the recipes know whose when names it, sorted.
func (f *Foreman) Keys(ctx context.Context, schedule string) ([]string, error) {
	known := map[string]struct{}{}
	for _, r := range waitingFor(f.opt.Config(), schedule) {
		err := f.ledger.Keys(ctx, r, func(key string) bool {
			known[key] = struct{}{}
			return true
		})
		if err != nil {
			return nil, fmt.Errorf("list the keys of recipe %s for schedule %s: %w", r, schedule, err)
		}
	}
	all := make([]string, 0, len(known))
	for key := range known {
		all = append(all, key)
	}
	slices.Sort(all)
	return all, nil
}

// waitingFor are the recipes that a schedule's ticks start.
func waitingFor(c *config.Config, schedule string) (names []string) {
	for _, r := range c.Recipes {
		if slices.ContainsFunc(r.When, func(w config.RecipeWhen) bool { return w.Schedule == schedule }) {
			names = append(names, r.Name)
		}
	}
	return names
}
