package config

import (
	"slices"
	"strings"
)

// Owners finds the keys that own a dataset: the keys for which a template of a recipe expands
// to the dataset's name. Access rights follow from it: they cover everything that an event of
// the key would read and write, and that is removed when the key is forgotten. This also works
// for keys with slashes.
type Owners struct {
	byBegin map[string][]ownTemplate // templates by the text before the first {key}
	known   map[string]bool          // templates in byBegin, as whole texts
	longest int                      // length of the longest key of byBegin
	keyless map[string]bool          // datasets that recipes without keys make
}

// ownTemplate is a template in which {key} is the only field left: the texts before, between
// and after the {key}s.
type ownTemplate []string

// OwnersOf reads the templates of the recipes' datasets.
func OwnersOf(c *Config) *Owners {
	o := &Owners{byBegin: map[string][]ownTemplate{}, known: map[string]bool{}, keyless: map[string]bool{}}
	for i := range c.Recipes {
		r := &c.Recipes[i]
		if r.Key == KeyNone {
			o.addKeyless(r)
			continue
		}
		o.add(r, r.Makes.Dataset)
		for j := range r.Inputs {
			o.add(r, r.Inputs[j].Dataset)
		}
	}
	return o
}

// addKeyless adds the dataset that a recipe without keys makes.
func (o *Owners) addKeyless(r *Recipe) {
	name, err := Expand(r.Makes.Dataset, func(field string) (string, bool) {
		text, ok := map[string]string{"recipe": r.Name, "team": r.Team}[field]
		return text, ok
	})
	if err == nil && name != "" {
		o.keyless[name] = true
	}
}

// Keyless reports whether a recipe without keys makes a dataset. The files may hold data of every
// key, so the name of the dataset gives no right to them.
func (o *Owners) Keyless(dataset string) bool { return o.keyless[dataset] }

func (o *Owners) add(r *Recipe, template string) {
	parts, fault := cutTemplate(template)
	if fault != nil {
		return // cannot happen: a recipe with a faulty template is refused
	}
	t := ownTemplate{""}
	for _, p := range parts {
		last := &t[len(t)-1]
		switch p.field {
		case "":
			*last += p.text
		case "recipe":
			*last += r.Name
		case "team":
			*last += r.Team
		case "key":
			t = append(t, "")
		}
	}
	whole := strings.Join(t, "{key}")
	if len(t) == 1 || o.known[whole] {
		return // shared by all keys, or already known
	}
	o.known[whole] = true
	o.byBegin[t[0]] = append(o.byBegin[t[0]], t)
	o.longest = max(o.longest, len(t[0]))
}

// Of returns the keys that a dataset belongs to. If no template with a key matches, it is the
// last segment of the dataset's name.
func (o *Owners) Of(dataset string) (keys []string) {
	for n := 0; n <= min(o.longest, len(dataset)); n++ {
		for _, t := range o.byBegin[dataset[:n]] {
			if key, ok := t.keyOf(dataset); ok && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return []string{dataset[strings.LastIndexByte(dataset, '/')+1:]}
	}
	return keys
}

// keyOf returns the key for which the template expands to this name. The key's length follows
// from the name's length.
func (t ownTemplate) keyOf(name string) (string, bool) {
	left := len(name)
	for _, text := range t {
		left -= len(text)
	}
	times := len(t) - 1
	if left < times || left%times != 0 {
		return "", false
	}
	key := name[len(t[0]) : len(t[0])+left/times]
	return key, strings.Join(t, key) == name
}
