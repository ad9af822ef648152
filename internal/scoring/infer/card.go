package infer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// card is model.yaml: the author's description of a model.
type card struct {
	input, output string
	labels        []string
	labelOutput   string // output in labels: {output: …}
	golden        *golden
	rows          int   // 0 means no limit
	bytes         int64 // 0 means no limit
}

// golden is a request with a known answer.
type golden struct {
	inputs map[string]*yaml.Node // lists of rows; decoded after the model has given its specs
	label  string
	line   int
}

// Files of a model and their largest sizes. ONNX itself has a limit of 2 GiB.
const (
	ModelFile = "model.onnx"
	CardFile  = "model.yaml"
	maxModel  = 2<<30 - 1
	maxCard   = 256 << 10 // about ten thousand labels
	maxDepth  = 16
	maxRows   = 1 << 16
	maxLabel  = 1 << 10
)

// readCard reads model.yaml strictly. Anything unknown is an error with its line,
// because a typo would otherwise show only in wrong answers.
func readCard(data []byte) (*card, error) {
	c := &card{}
	root, err := parseCard(data)
	if err != nil || root == nil {
		return c, err
	}
	err = fields(root, "", map[string]func(*yaml.Node) error{
		"input":  func(n *yaml.Node) error { return text(n, "input", &c.input) },
		"output": func(n *yaml.Node) error { return text(n, "output", &c.output) },
		"labels": c.readLabels,
		"golden": c.readGolden,
		"limits": c.readLimits,
	})
	return c, err
}

func (c *card) readLabels(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		return fields(n, "labels.", map[string]func(*yaml.Node) error{
			"output": func(n *yaml.Node) error { return text(n, "labels.output", &c.labelOutput) },
		})
	}
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return wrong(n, "labels must be a list such as [greet, bye], or {output: NAME}")
	}
	seen := make(map[string]bool, len(n.Content))
	for _, item := range n.Content {
		var label string
		if err := text(item, "a label", &label); err != nil {
			return err
		}
		if seen[label] {
			return wrong(item, "label %q appears twice", label)
		}
		seen[label] = true
		c.labels = append(c.labels, label)
	}
	return nil
}

func (c *card) readGolden(n *yaml.Node) error {
	g := &golden{inputs: map[string]*yaml.Node{}, line: n.Line}
	err := fields(n, "golden.", map[string]func(*yaml.Node) error{
		"inputs": func(n *yaml.Node) error { return g.readInputs(n) },
		"label":  func(n *yaml.Node) error { return text(n, "golden.label", &g.label) },
	})
	if err == nil && len(g.inputs) == 0 {
		err = wrong(n, "golden needs inputs, such as {inputs: {x: [[1, 2]]}}")
	}
	c.golden = g
	return err
}

func (g *golden) readInputs(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return wrong(n, "golden.inputs must name each input and its rows, such as {x: [[1, 2]]}")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, rows := n.Content[i], n.Content[i+1]
		switch {
		case g.inputs[name.Value] != nil:
			return wrong(name, "golden.inputs.%s appears twice", name.Value)
		case rows.Kind != yaml.SequenceNode || len(rows.Content) == 0:
			return wrong(rows, "golden.inputs.%s must be a list of rows, such as [[1, 2]] or [\"hi\"]", name.Value)
		case len(rows.Content) > maxRows:
			return wrong(rows, "golden.inputs.%s has %d rows; at most %d are read", name.Value, len(rows.Content), maxRows)
		}
		g.inputs[name.Value] = rows
	}
	return nil
}

func (c *card) readLimits(n *yaml.Node) error {
	return fields(n, "limits.", map[string]func(*yaml.Node) error{
		"rows": func(n *yaml.Node) error {
			if err := n.Decode(&c.rows); err != nil || n.ShortTag() != "!!int" || c.rows < 1 || c.rows > maxRows {
				return wrong(n, "limits.rows must be a whole number from 1 to %d, not %q", maxRows, n.Value)
			}
			return nil
		},
		"bytes": func(n *yaml.Node) (err error) {
			if c.bytes, err = size(n.Value); err != nil || n.Kind != yaml.ScalarNode {
				return wrong(n, "limits.bytes must be a size such as 64MiB, not %q", n.Value)
			}
			return nil
		},
	})
}

// text reads a text that is not empty. It refuses numbers and booleans, because YAML
// reads `no` and `1.0` differently from how they look.
func text(n *yaml.Node, what string, to *string) error {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		return wrong(n, "%s must be text; put %q in quotes", what, n.Value)
	}
	if n.Value == "" || len(n.Value) > maxLabel || strings.ContainsFunc(n.Value, isControl) {
		return wrong(n, "%s must have 1 to %d bytes and no control characters", what, maxLabel)
	}
	*to = n.Value
	return nil
}

func isControl(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }

func wrong(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%w: %s, line %d: %s", ErrUnfit, CardFile, n.Line, fmt.Sprintf(format, args...))
}

// parseCard returns the one document of model.yaml; nil if the file is empty.
func parseCard(data []byte) (root *yaml.Node, err error) {
	defer func() { // a panic of the YAML parser becomes an error
		if r := recover(); r != nil {
			root, err = nil, fmt.Errorf("%w: %s: the YAML parser failed: %v", ErrUnfit, CardFile, r)
		}
	}()
	if len(data) > maxCard {
		return nil, fmt.Errorf("%w: %s has %d bytes; at most %d are read", ErrUnfit, CardFile, len(data), maxCard)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %s", ErrUnfit, CardFile, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s: it must hold one document", ErrUnfit, CardFile)
	}
	return doc.Content[0], plain(doc.Content[0], 0)
}

// plain refuses YAML whose meaning is not visible: aliases, which can also expand a
// small file without limit, tags, and deep nesting.
func plain(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return wrong(n, "it is nested more than %d deep", maxDepth)
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return wrong(n, "anchors and aliases are refused; write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		return wrong(n, "tags (!name) are refused; write the plain value")
	}
	for _, child := range n.Content {
		if err := plain(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// fields reads a mapping of known keys.
func fields(n *yaml.Node, path string, known map[string]func(*yaml.Node) error) error {
	names := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	if n.Kind != yaml.MappingNode {
		return wrong(n, "%s must have keys: %s", strings.TrimSuffix("it."+path, "."), names)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		read := known[name.Value]
		switch {
		case read == nil:
			return wrong(name, "%s%s is not known; there are %s", path, name.Value, names)
		case seen[name.Value]:
			return wrong(name, "%s%s appears twice", path, name.Value)
		}
		seen[name.Value] = true
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

// size reads a size such as 64MiB.
func size(s string) (int64, error) {
	units := []struct {
		name string
		by   int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
		{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}
	for _, u := range units {
		if number, ok := strings.CutSuffix(s, u.name); ok {
			if n, err := strconv.ParseInt(number, 10, 64); err == nil && n > 0 && n <= math.MaxInt64/u.by {
				return n * u.by, nil
			}
		}
	}
	return 0, errors.New("it is not a size")
}
