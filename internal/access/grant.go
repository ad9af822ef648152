package access

import (
	"slices"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// grant is some roles and what they reach. A caller may have several, and each
// counts for itself: who may operate one key and read all must not operate all.
type grant struct {
	roles                []Role
	types, sources, keys []pattern // nil is everything
}

func newGrant(r config.Rights) grant {
	g := grant{types: patterns(r.Types), sources: patterns(r.Sources), keys: patterns(r.Keys)}
	for _, role := range r.Roles {
		g.roles = append(g.roles, Role(role).covered()...)
	}
	return g
}

func (g *grant) has(r Role) bool { return slices.Contains(g.roles, r) }

// pattern is a text, or the beginning of one.
type pattern struct {
	text   string
	prefix bool
}

func patterns(texts []string) []pattern {
	var all []pattern
	for _, t := range texts {
		start, prefix := strings.CutSuffix(t, "*")
		all = append(all, pattern{start, prefix})
	}
	return all
}

func (p pattern) String() string {
	if p.prefix {
		return p.text + "*"
	}
	return p.text
}

// allow reports whether a value is among the patterns, where there are any.
func allow(all []pattern, value string) bool {
	if all == nil {
		return true
	}
	for _, p := range all {
		if p.text == value || p.prefix && strings.HasPrefix(value, p.text) {
			return true
		}
	}
	return false
}

// denies says what of an event the grant does not reach; nil if it reaches it
// all.
func (g *grant) denies(v *broker.View) *Denied {
	switch {
	case !allow(g.types, v.Type):
		return &Denied{attribute: attrType, value: v.Type, allowed: g.types}
	case !allow(g.sources, v.Source):
		return &Denied{attribute: attrSource, value: v.Source, allowed: g.sources}
	case g.keys == nil:
		return nil
	}
	// Consumers key by partitionkey or by subject as they like, so neither may
	// name what the caller must not touch. An event without both would reach
	// every key's reader.
	key, keyed := v.Attribute(attrPartitionKey)
	switch {
	case keyed && !allow(g.keys, key):
		return &Denied{attribute: attrPartitionKey, value: key, allowed: g.keys}
	case v.Subject != "" && !allow(g.keys, v.Subject):
		return &Denied{attribute: attrSubject, value: v.Subject, allowed: g.keys}
	case !keyed && v.Subject == "":
		return &Denied{attribute: attrSubject, allowed: g.keys}
	}
	return nil
}
