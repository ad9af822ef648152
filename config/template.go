package config

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"tidemill.dev/config/spelling"
)

// Expand fills in a template: each {name} becomes its value, and {{ and }} become braces. A value
// is inserted as it is and not expanded again. The error names the first field without a value.
func Expand(template string, value func(name string) (string, bool)) (string, error) {
	parts, fault := cutTemplate(template)
	if fault != nil {
		return "", fmt.Errorf("expand %s: %w", show(template), fault)
	}
	var b strings.Builder
	for _, p := range parts {
		if p.field == "" {
			b.WriteString(p.text)
			continue
		}
		text, ok := value(p.field)
		if !ok {
			return "", fmt.Errorf("expand %s: there is no value for {%s}", show(template), plain(p.field))
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// Literal returns the template that expands to a text.
func Literal(text string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(text)
}

// templatePart is either plain text or a field.
type templatePart struct {
	text, field string
	column      int // column where it begins, counted from 1
}

// templateFault says why a text is not a template.
type templateFault struct {
	column  int
	message string
}

// Error returns the column and the fault.
func (f *templateFault) Error() string { return fmt.Sprintf("column %d: %s", f.column, f.message) }

// cutTemplate splits a template into its parts.
func cutTemplate(s string) ([]templatePart, *templateFault) {
	var parts []templatePart
	for at := 0; at < len(s); {
		part, next, fault := cutPart(s, at)
		if fault != "" {
			return nil, &templateFault{utf8.RuneCountInString(s[:at]) + 1, fault}
		}
		part.column = utf8.RuneCountInString(s[:at]) + 1
		parts, at = append(parts, part), next
	}
	return parts, nil
}

func cutPart(s string, at int) (p templatePart, next int, fault string) {
	rest := s[at:]
	switch {
	case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
		return templatePart{text: rest[:1]}, at + 2, ""
	case rest[0] == '}':
		return p, 0, "a } closes nothing; write }} for the brace itself"
	case rest[0] != '{':
		n := strings.IndexAny(rest, "{}")
		if n < 0 {
			n = len(rest)
		}
		return templatePart{text: rest[:n]}, at + n, ""
	}
	n := strings.IndexAny(rest[1:], "{}")
	switch {
	case n < 0 || rest[1+n] == '{':
		return p, 0, "the { is not closed; write }, or {{ for the brace itself"
	case n == 0:
		return p, 0, "{} names nothing; write a field such as {key}, or {{}} for the braces themselves"
	}
	return templatePart{field: rest[1 : 1+n]}, at + 2 + n, ""
}

// templateFields returns the fields of a template that has been checked.
func templateFields(s string) (all []string) {
	parts, _ := cutTemplate(s)
	for _, p := range parts {
		if p.field != "" {
			all = append(all, p.field)
		}
	}
	return all
}

// template reads a template; the function fault says what is wrong with a field.
func (v value) template(fault func(field string) string) (string, bool) {
	text, ok := v.text()
	if !ok {
		return "", false
	}
	parts, wrong := cutTemplate(text)
	if wrong != nil {
		v.problem("%s", wrong)
		return "", false
	}
	for _, p := range parts {
		if p.field == "" {
			continue
		}
		if why := fault(p.field); why != "" {
			v.problem("column %d: %s", p.column, why)
			ok = false
		}
	}
	return text, ok
}

// unknownField suggests the field that an unknown field may have been meant as.
func unknownField(field string, known []string) string {
	if near, ok := spelling.Nearest(field, known); ok {
		return fmt.Sprintf("there is no field %s; did you mean {%s}?", show(field), near)
	}
	braced := make([]string, len(known))
	for i, k := range known {
		braced[i] = "{" + k + "}"
	}
	return fmt.Sprintf("there is no field %s; known here: %s", show(field), strings.Join(braced, ", "))
}

// recipeFields are the fields that every template of a recipe may contain.
var recipeFields = []string{"key", "recipe", "team"} // read only

// faultOf says why a field cannot be in a recipe's own templates.
func faultOf(field string) string {
	if slices.Contains(recipeFields, field) {
		return ""
	}
	return unknownField(field, recipeFields)
}

// Owners finds the keys that own a dataset: the keys for which a template of a recipe expands
// to the dataset's name. Access rights follow from it: they cover everything that an event of
// the key would read and write, and that is removed when the key is forgotten. This also works
// for keys with slashes.
type Owners struct {
	byBegin map[string][]KeyTemplate // templates by the text before the first {key}
	known   map[string]bool          // templates in byBegin, as whole texts
	longest int                      // length of the longest key of byBegin
	keyless map[string]bool          // datasets that recipes without keys make
}

// OwnersOf reads the templates of the recipes' datasets.
func OwnersOf(c *Config) *Owners {
	o := &Owners{byBegin: map[string][]KeyTemplate{}, known: map[string]bool{}, keyless: map[string]bool{}}
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
	t := newKeyTemplate(template, r)
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
			if key, ok := t.KeyOf(dataset); ok && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return []string{dataset[strings.LastIndexByte(dataset, '/')+1:]}
	}
	return keys
}

// KeyTemplate is a template of names as the texts before, between and after the places of the key.
type KeyTemplate []string

// newKeyTemplate returns the template of a recipe's names, or of a scorer's without a recipe.
func newKeyTemplate(template string, r *Recipe) KeyTemplate {
	parts, _ := cutTemplate(template) // a config with a faulty template is refused
	t := KeyTemplate{""}
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
	return t
}

// KeyOf returns the key for which the template expands to a name; false if there is none. The key's length
// follows from the name's length.
func (t KeyTemplate) KeyOf(name string) (key string, ok bool) {
	left, times := len(name), len(t)-1
	for _, text := range t {
		left -= len(text)
	}
	if times == 0 || left < times || left%times != 0 {
		return "", times == 0 && name == t[0]
	}
	key = name[len(t[0]) : len(t[0])+left/times]
	rest := name
	for i, text := range t {
		if i > 0 {
			if rest, ok = strings.CutPrefix(rest, key); !ok {
				return "", false
			}
		}
		if rest, ok = strings.CutPrefix(rest, text); !ok {
			return "", false
		}
	}
	return key, true
}
