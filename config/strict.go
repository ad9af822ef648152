package config

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// maxDepth is far deeper than any config; it bounds paths and recursion.
const maxDepth = 32

// strict reports what we refuse of YAML wherever it stands: whatever makes a
// file mean something else than it seems to, and secrets.
func strict(v value) { strictAt(v, 0) }

func strictAt(v value, depth int) {
	n := v.node
	if depth > maxDepth {
		v.problem("is nested more than %d deep", maxDepth)
		return
	}
	switch {
	case n.Kind == yaml.AliasNode:
		v.problem("aliases (*name) are refused; write the value out")
		return
	case n.Anchor != "":
		v.problem("anchors (&name) are refused; write the value out where it is needed")
	case n.Style&yaml.TaggedStyle != 0:
		v.problem("tags (!name) are refused; write the plain value")
	}
	switch n.Kind {
	case yaml.MappingNode:
		strictMapping(v, depth)
	case yaml.SequenceNode:
		for i, item := range n.Content {
			strictAt(v.item(i, item), depth+1)
		}
	case yaml.ScalarNode:
		strictText(v)
	}
}

func strictMapping(v value, depth int) {
	first := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key, child := v.node.Content[i], v.node.Content[i+1]
		if fault := keyFault(key); fault != "" {
			v.problemAt(key, "%s", fault)
			continue
		}
		at := v.child(key.Value, child)
		if line, again := first[key.Value]; again {
			at.problemAt(key, "stands twice; the first is in line %d, keep one", line)
		} else {
			first[key.Value] = key.Line
		}
		strictAt(at, depth+1)
	}
}

func strictText(v value) {
	if why := secretIn(v.node.Value); why != "" {
		v.problem("%s", why)
	}
	if c, ok := controlIn(v.node.Value); ok {
		v.problem("has the control character %q; remove it", c)
	}
}

// controlIn finds what an escape such as "\0" smuggled into a text.
func controlIn(s string) (rune, bool) {
	for _, c := range s {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 {
			return c, true
		}
	}
	return 0, false
}

// keyFault says why a key is refused, if it is.
func keyFault(key *yaml.Node) string {
	switch {
	case key.Kind != yaml.ScalarNode:
		return fmt.Sprintf("a key must be text, not %s", describe(key))
	case key.Anchor != "" || key.Style&yaml.TaggedStyle != 0:
		return "a key must be plain text, without anchor or tag"
	case key.ShortTag() == "!!merge":
		return "merge keys (<<) are refused; write the values out"
	case key.ShortTag() == "!!bool":
		return fmt.Sprintf("a key must be text, not %s; if this came through Helm, quote the key (\"on\", \"yes\", \"no\") in its values", describe(key))
	case key.ShortTag() != "!!str" || isBooleanElsewhere(key):
		return fmt.Sprintf("a key must be text, not %s; write it in quotes", describe(key))
	case key.Value == "":
		return "a key is empty"
	}
	if c, ok := controlIn(key.Value); ok {
		return fmt.Sprintf("a key has the control character %q; remove it", c)
	}
	if why := secretIn(key.Value); why != "" {
		return "a key " + why
	}
	return ""
}
