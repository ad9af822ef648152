package config

import (
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// value is a node of a file, its place, and the report for its problems. Reading a value never
// fails: it reports a problem and returns false.
type value struct {
	node *yaml.Node
	file string
	path string
	to   *report
}

// field is a key that a mapping may have.
type field struct {
	key  string
	read func(value)
}

func (v value) problem(format string, args ...any) {
	v.problemAt(v.node, format, args...)
}

func (v value) problemAt(n *yaml.Node, format string, args ...any) {
	v.to.add(Problem{File: v.file, Line: n.Line, Path: v.path, Message: fmt.Sprintf(format, args...)})
}

// fields reads a mapping of known keys and reports the others.
func (v value) fields(fields ...field) {
	known := make([]string, len(fields))
	read := make(map[string]func(value), len(fields))
	for i, f := range fields {
		known[i], read[f.key] = f.key, f.read
	}
	for key, child := range v.pairs() {
		if r := read[key.Value]; r != nil {
			r(child)
			continue
		}
		child.problemAt(key, "%s", unknownKey(key.Value, known))
	}
}

// presentFields parses the given fields and returns the names of those that are present.
func (v value) presentFields(fields ...field) map[string]bool {
	seen := map[string]bool{}
	for i, f := range fields {
		fields[i].read = func(v value) { seen[f.key] = true; f.read(v) }
	}
	v.fields(fields...)
	return seen
}

// require reports a missing field. If the value is not a mapping, fields has reported that, and
// require reports nothing.
func (v value) require(at *yaml.Node, given map[string]bool, key, next string) {
	if !given[key] && (v.node.Kind == yaml.MappingNode || isNull(v.node)) {
		v.child(key, v.node).problemAt(at, "is missing; %s", next)
	}
}

// versioned calls fields for a whole file. Every file must give its version, because the
// version applies to that file alone.
func (v value) versioned(fields ...field) {
	given := v.presentFields(append([]field{{"version", readVersion}}, fields...)...)
	v.require(v.node, given, "version", fmt.Sprintf("begin the file with `version: %d`", fileVersion))
}

// nodeAt returns the YAML node of a key that is present.
func (v value) nodeAt(key string) *yaml.Node {
	for k, child := range v.pairs() {
		if k.Value == key {
			return child.node
		}
	}
	return v.node
}

// pairs iterates over a mapping. It skips the entries that strict has reported: keys that are
// not text, and all but the first of equal keys. An empty value (`streams:`) is an empty
// mapping, as when everything under it is commented out.
func (v value) pairs() iter.Seq2[*yaml.Node, value] {
	return func(yield func(*yaml.Node, value) bool) {
		if v.node.Kind != yaml.MappingNode {
			if v.node.Kind != yaml.AliasNode && !isNull(v.node) {
				v.problem("must be keys and values, not %s", describe(v.node))
			}
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(v.node.Content); i += 2 {
			key := v.node.Content[i]
			if keyFault(key) != "" || seen[key.Value] {
				continue
			}
			seen[key.Value] = true
			if !yield(key, v.child(key.Value, v.node.Content[i+1])) {
				return
			}
		}
	}
}

// items reads a list; a single text is not accepted as a list of one.
func (v value) items() []value {
	if v.node.Kind != yaml.SequenceNode {
		if v.node.Kind != yaml.AliasNode {
			v.problem("must be a list, such as [a, b], not %s", describe(v.node))
		}
		return nil
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = v.item(i, n)
	}
	return items
}

// text reads a text. A plain word that another YAML reader would take for a number or a boolean
// must be quoted, so that the file means the same to both.
func (v value) text() (string, bool) {
	n := v.node
	switch {
	case n.Kind == yaml.AliasNode || secretIn(n.Value) != "":
		return "", false // strict has reported it
	case n.Kind != yaml.ScalarNode || isNull(n):
		v.problem("must be text, not %s", describe(n))
	case n.ShortTag() != "!!str" || isBooleanElsewhere(n):
		v.problem("must be text, not %s; write it in quotes", describe(n))
	case n.Value == "":
		v.problem("is empty; write a text or remove the key")
	default:
		return n.Value, true
	}
	return "", false
}

// isEmptyText reports whether the value is a text in quotes without a letter.
func (v value) isEmptyText() bool {
	return v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!str" && v.node.Value == ""
}

// scalar reads a text or a number as it is written.
func (v value) scalar() (string, bool) {
	switch {
	case v.node.Kind == yaml.AliasNode || secretIn(v.node.Value) != "":
		return "", false // strict has reported it
	case v.node.Kind != yaml.ScalarNode || isNull(v.node):
		v.problem("must be one value, not %s", describe(v.node))
		return "", false
	}
	return v.node.Value, true
}

var plainDigits = regexp.MustCompile(`^(0|[1-9][0-9]{0,17})$`)

// integer reads a whole number within bounds.
func (v value) integer(low, high int) (int, bool) {
	n := v.node
	digits := n.Value
	if low < 0 {
		digits = strings.TrimPrefix(digits, "-")
	}
	switch {
	case n.Kind == yaml.AliasNode:
		return 0, false
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || !plainDigits.MatchString(digits):
		v.problem("must be a whole number from %d to %d, not %s", low, high, describe(n))
		return 0, false
	}
	i, err := strconv.Atoi(n.Value)
	if err != nil || i < low || i > high {
		v.problem("must be a whole number from %d to %d, not %s", low, high, n.Value)
		return 0, false
	}
	return i, true
}

// oneOf reads one of several words.
func (v value) oneOf(words ...string) (string, bool) {
	s, ok := v.text()
	if !ok {
		return "", false
	}
	for _, w := range words {
		if s == w {
			return s, true
		}
	}
	v.problem("must be one of %s, not %s", strings.Join(words, ", "), show(s))
	return "", false
}

// boolean reads true or false.
func (v value) boolean() (bool, bool) {
	n := v.node
	switch {
	case n.Kind == yaml.AliasNode:
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!bool" && isPlain(n):
		return strings.EqualFold(n.Value, "true"), true
	default:
		v.problem("must be true or false, not %s", describe(n))
	}
	return false, false
}

// span reads a duration within bounds, such as 1m30s.
func (v value) span(low, high time.Duration) (time.Duration, bool) {
	text, ok := v.scalar()
	if !ok {
		return 0, false
	}
	if !startsWithDigit(text) {
		v.problem("must be a time such as 10s, not %s", show(text))
		return 0, false
	}
	instead := "write " + showSpan(low) + " to " + showSpan(high)
	d, err := sumSpans(text, high, "is more than "+showSpan(high)+"; "+instead, instead)
	switch {
	case err != nil:
		v.problem("%s", err)
	case d < low:
		v.problem("%s is less than %s; %s", show(text), showSpan(low), instead)
	default:
		return d, true
	}
	return 0, false
}

func (v value) child(key string, n *yaml.Node) value {
	switch {
	case !plainKey.fits(key):
		v.path += "[" + show(key) + "]"
	case v.path == "":
		v.path = key
	default:
		v.path += "." + key
	}
	v.node = n
	return v
}

func (v value) item(i int, n *yaml.Node) value {
	v.path += "[" + strconv.Itoa(i) + "]"
	v.node = n
	return v
}

var plainKey = shaped(60, `^[A-Za-z0-9_-]+$`)

// shape is an expression and the greatest length of a text. The bound is not part of the
// expression, because a compiled {0,200} uses two hundred copies, in every process for its
// whole life.
type shape struct {
	most int
	as   *regexp.Regexp
}

func shaped(most int, as string) shape { return shape{most, regexp.MustCompile(as)} }

func (s shape) fits(text string) bool {
	return utf8.RuneCountInString(text) <= s.most && s.as.MatchString(text)
}
