package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const (
	maxFile = 1 << 20 // bytes; the limit of a ConfigMap
	// maxSearch bounds the bytes that are parsed again to find the line of an error.
	maxSearch = 8 << 20
)

// source is a file's name, as problems print it, and its bytes.
type source struct {
	name string
	data []byte
}

// document parses the one YAML document of a file. If that fails, it reports the problem and
// returns nil.
func (r *report) document(s source) *yaml.Node {
	wrong := func(line int, format string, args ...any) *yaml.Node {
		r.add(Problem{File: s.name, Line: line, Message: fmt.Sprintf(format, args...)})
		return nil
	}
	if line, what := badBytes(s.data); what != "" {
		return wrong(line, "%s", what)
	}
	feed := &lineFeed{rest: s.data}
	dec := yaml.NewDecoder(feed)
	doc, err := decode(dec)
	switch {
	case errors.Is(err, io.EOF):
		return wrong(1, "the file is empty; begin it with `version: 1`")
	case err != nil:
		return wrong(errorLine(s.data, feed.lines, err), "%s", cleanMessage(err))
	}
	next, err := decode(dec)
	switch {
	case errors.Is(err, io.EOF):
		return doc.Content[0]
	case err != nil:
		return wrong(feed.lines, "%s", cleanMessage(err))
	}
	return wrong(next.Line, "a second document begins here; a file holds one, so put this into another file in the same folder")
}

// badBytes reports bytes that a YAML file must not contain, before the parser reads it.
func badBytes(data []byte) (line int, what string) {
	if len(data) > maxFile {
		return 1, fmt.Sprintf("the file is larger than %d KiB; is it a Tidemill config?", maxFile>>10)
	}
	line = 1
	for i := 0; i < len(data); {
		c, n := utf8.DecodeRune(data[i:])
		switch {
		case c == utf8.RuneError && n == 1:
			return line, "the file is not UTF-8 text; save it as UTF-8"
		case c == '\n':
			line++
		case (c < ' ' && c != '\t' && c != '\r') || (c >= 0x7f && c < 0xa0):
			return line, fmt.Sprintf("there is a control character %q here; remove it", c)
		}
		i += n
	}
	return 0, ""
}

// decode reads the next document. The parser is third-party code: if it panics on a file, that
// file is refused and the process continues.
func decode(dec *yaml.Decoder) (doc *yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML parser failed: %v", p)
		}
	}()
	doc = new(yaml.Node)
	return doc, dec.Decode(doc)
}

// lineFeed gives the parser one line at a time, so that its line count shows how far the parser
// got.
type lineFeed struct {
	rest  []byte
	lines int
}

// Read returns the rest of the line.
func (f *lineFeed) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		return 0, io.EOF
	}
	n := bytes.IndexByte(f.rest, '\n') + 1
	if n == 0 {
		n = len(f.rest)
	}
	n = copy(p, f.rest[:n])
	if f.rest[n-1] == '\n' || n == len(f.rest) {
		f.lines++
	}
	f.rest = f.rest[n:]
	return n, nil
}

var yamlPrefix = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// errorLine finds the line of a syntax error. The parser often reports the line where the
// enclosing block began, or none. A reader expects the line after the longest prefix that
// parses. The parser got no further than reached.
func errorLine(data []byte, reached int, err error) int {
	ends := lineEnds(data)
	for budget, line := maxSearch, min(reached+1, len(ends)); line > 1 && budget > 0; line-- {
		head := data[:ends[line-2]]
		budget -= len(head)
		if parses(head) {
			return line
		}
	}
	line, _ := strconv.Atoi(yamlPrefix.FindStringSubmatch(err.Error() + "\n")[1])
	return max(line, 1)
}

func lineEnds(data []byte) []int {
	var ends []int
	for i, c := range data {
		if c == '\n' || i == len(data)-1 {
			ends = append(ends, i+1)
		}
	}
	return ends
}

func parses(head []byte) bool {
	_, err := decode(yaml.NewDecoder(bytes.NewReader(head)))
	return err == nil
}

func cleanMessage(err error) string {
	text := "this is not YAML: " + yamlPrefix.ReplaceAllString(err.Error(), "")
	if strings.Contains(text, "did not find expected ',' or '}'") {
		text += `; close each {, and put text with a brace in quotes, such as "intent/{key}"`
	}
	return text
}

// maxDepth is much deeper than any real config; it bounds paths and recursion.
const maxDepth = 32

// strict reports secrets, and all YAML features that can make a file mean something other than
// it seems to.
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
			at.problemAt(key, "appears twice; the first is in line %d, keep one", line)
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

// controlIn finds a control character, which an escape such as "\0" can put into a text.
func controlIn(s string) (rune, bool) {
	for _, c := range s {
		if c < ' ' && c != '\n' && c != '\t' || c >= 0x7f && c < 0xa0 {
			return c, true
		}
	}
	return 0, false
}

// keyFault says why a key is refused; empty if it is not.
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
