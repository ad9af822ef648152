package erase

import (
	"slices"

	"tidemill.dev"
	"tidemill.dev/config"
)

// belongings are the names of what belongs to a key by the config: of what is
// there besides, the ledger knows.
type belongings struct {
	recipes  []string
	models   []model
	datasets []string
}

// model is one and the recipe that makes it.
type model struct{ name, recipe string }

// belongingsOf reads them out of the config's templates. What is named without
// {key} is shared and belongs to no key; nor does a recipe without keys, whose
// runs bear its own name instead of one.
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

// ofKey fills a template in; false if it does not name the key, or the key
// makes no name of it: then nothing can have that name.
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

// keyless reports whether a recipe of the config has no keys: what bears its
// name as a key belongs to none.
func keyless(c *config.Config, recipe string) bool {
	r, known := c.Recipe(recipe)
	return known && r.Key == config.KeyNone
}
