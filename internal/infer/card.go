package infer

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// card is model.yaml: what its maker says of a model.
type card struct {
	input, output string
	labels        []string
	labelOutput   string // labels: {output: …}
	golden        *golden
	rows          int   // 0 is no limit
	bytes         int64 // 0 is no limit
}

// golden is a request whose answer is known.
type golden struct {
	inputs map[string]*yaml.Node // lists of rows; read when the model has said what it wants
	label  string
	line   int
}

// The files of a model, and how large they may be. ONNX's own limit is 2 GiB.
const (
	ModelFile = "model.onnx"
	CardFile  = "model.yaml"
	maxModel  = 2<<30 - 1
	maxCard   = 256 << 10 // some ten thousand labels
	maxDepth  = 16
	maxRows   = 1 << 16
	maxLabel  = 1 << 10
)

// readCard reads model.yaml strictly: what it cannot mean is an error with its
// line, since a slip would otherwise show in answers.
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
			return wrong(item, "label %q stands twice", label)
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
			return wrong(name, "golden.inputs.%s stands twice", name.Value)
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

// text reads a text that is not empty. Numbers and booleans are no texts: YAML
// takes `no` and `1.0` for something else than they look like.
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
