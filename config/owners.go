package config

import (
	"slices"
	"strings"
)

// Owners tell which keys datasets belong to: those for which a template of a recipe
// gives the dataset's name. So rights go by what an event of the key would read and
// write, and by what goes when the key is forgotten, also where a key has slashes.
type Owners struct {
	byBegin map[string][]ownTemplate // by the text before the first {key}
	known   map[string]bool          // those that are there, as one text
	longest int                      // of these texts
}

// ownTemplate is a template with nothing left in it but {key}: the texts before,
// between and behind.
type ownTemplate []string

// OwnersOf reads the templates of the recipes' datasets.
func OwnersOf(c *Config) *Owners {
	o := &Owners{byBegin: map[string][]ownTemplate{}, known: map[string]bool{}}
	for i := range c.Recipes {
		r := &c.Recipes[i]
		if r.Key == KeyNone {
			continue
		}
		o.add(r, r.Makes.Dataset)
		for j := range r.Inputs {
			o.add(r, r.Inputs[j].Dataset)
		}
	}
	return o
}

func (o *Owners) add(r *Recipe, template string) {
	parts, fault := cutTemplate(template)
	if fault != nil {
		return // none is read that has one
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
		return // it is shared by all keys, or known
	}
	o.known[whole] = true
	o.byBegin[t[0]] = append(o.byBegin[t[0]], t)
	o.longest = max(o.longest, len(t[0]))
}

// Of are the keys that a dataset belongs to. One that no recipe names by a key
// goes by the last segment of its name.
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

// keyOf is what the key is if the template has given this name. Its length follows
// from that of the name.
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
