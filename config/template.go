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
