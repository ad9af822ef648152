package config

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// maxPatterns bounds what each request is held against.
const maxPatterns = 1000

func (r *Rights) fields() []field {
	return []field{
		{"role", r.readRoles},
		{"types", func(v value) { r.Types = readPatterns(v, reservedType) }},
		{"sources", func(v value) { r.Sources = readPatterns(v, reservedSource) }},
		{"keys", func(v value) { r.Keys = readPatterns(v, nil) }},
	}
}

// readRoles reads one role or a list of them.
func (r *Rights) readRoles(v value) {
	if v.node.Kind != yaml.SequenceNode {
		if role, ok := v.oneOf(AccessRoles()...); ok {
			r.Roles = []string{role}
		}
		return
	}
	if len(v.node.Content) == 0 {
		v.problem("is an empty list; write one or more of %s", strings.Join(AccessRoles(), ", "))
	}
	for _, item := range v.items() {
		if role, ok := item.oneOf(AccessRoles()...); ok && !slices.Contains(r.Roles, role) {
			r.Roles = append(r.Roles, role)
		}
	}
}

// readPatterns reads a list that limits. An empty one is refused, because it
// might mean all or nothing.
func readPatterns(v value, reserved func(string) bool) []string {
	items := v.items()
	switch {
	case v.node.Kind == yaml.SequenceNode && len(items) == 0:
		v.problem("is an empty list; remove the key to allow everything")
	case len(items) > maxPatterns:
		v.problem("has more than %d items; use prefixes, such as shop-*", maxPatterns)
		return nil
	}
	var all []string
	for _, item := range items {
		p, ok := item.text()
		switch {
		case !ok:
		case strings.Contains(strings.TrimSuffix(p, "*"), "*"):
			item.problem("%s has a * that is not its end; a trailing * stands for any rest, and nothing else does", show(p))
		case reserved != nil && reserved(p):
			item.problem("%s is Tidemill's own, which nobody may publish from outside; remove it", show(p))
		default:
			all = append(all, p)
		}
	}
	return all
}

func reservedType(pattern string) bool { return tidemill.ReservedType(pattern) }

func reservedSource(pattern string) bool { return tidemill.Reserved("", pattern) != nil }
