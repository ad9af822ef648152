package infer

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

func TestCards(t *testing.T) {
	for text, want := range map[string]card{
		"":                    {},
		"# nothing\n":         {},
		"input: text\n":       {input: "text"},
		"labels: [greet, no]": {labels: []string{"greet", "no"}},
		"labels: {output: label}\noutput: scores":                                 {labelOutput: "label", output: "scores"},
		"limits: {rows: 256, bytes: 64MiB}":                                       {rows: 256, bytes: 64 << 20},
		"limits: {bytes: 1000}":                                                   {bytes: 1000},
		"input: text\noutput: probabilities\nlabels: [\"greet\", \"bye, bye\"]\n": {input: "text", output: "probabilities", labels: []string{"greet", "bye, bye"}},
	} {
		if got, err := readCard([]byte(text)); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	got, err := readCard([]byte("golden: {inputs: {text: [\"hi\"], x: [[1, 2]]}, label: greet}"))
	if err != nil || got.golden.label != "greet" || len(got.golden.inputs) != 2 || got.golden.line != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// The card in the documentation is valid.
func TestTheCardOfTheDocuments(t *testing.T) {
	text, err := os.ReadFile("../../../docs/scoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```yaml file=model.yaml.example\n")
	block, _, _ = strings.Cut(block, "```")
	c, err := readCard([]byte(block))
	if err != nil || len(c.labels) != 3 || c.golden == nil || c.golden.label != "greet" {
		t.Errorf("%+v, %v:\n%s", c, err, block)
	}
}

func TestCardsThatMeanNothing(t *testing.T) {
	for text, want := range map[string]string{
		"input: [":                           "line 1: did not find",
		"a: 1\n---\nb: 2":                    "one document",
		"- a":                                "line 1: it must have keys: golden, input, labels, limits, output",
		"label: [a]":                         "line 1: label is not known; there are golden, input, labels, limits, output",
		"input: a\ninput: b":                 "line 2: input appears twice",
		"\ninput: 3":                         `line 2: input must be text; put "3" in quotes`,
		"input: \"\"":                        "1 to 1024 bytes",
		"input: \"a\\0\"":                    "no control characters",
		"labels: []":                         "must be a list",
		"labels: a":                          "must be a list",
		"labels: [a, b, a]":                  `label "a" appears twice`,
		"labels: [1, 2]":                     `a label must be text; put "1" in quotes`,
		"labels: [true]":                     "put \"true\" in quotes",
		"labels: {outputs: x}":               "labels.outputs is not known; there are output",
		"labels:\n  - &a b\n  - *a":          "line 2: anchors and aliases are refused",
		"labels: !!set {a, b}":               "tags (!name) are refused",
		"limits: {rows: 0}":                  "limits.rows must be a whole number from 1",
		"limits: {rows: 1.5}":                "limits.rows must be a whole number",
		"limits: {rows: many}":               "limits.rows must be a whole number",
		"limits: {bytes: 64XB}":              "limits.bytes must be a size such as 64MiB",
		"limits: {bytes: -1}":                "limits.bytes must be a size",
		"limits: {bytes: 99999999999GiB}":    "limits.bytes must be a size",
		"limits: 5":                          "it.limits must have keys: bytes, rows",
		"golden: {label: a}":                 "golden needs inputs",
		"golden: {inputs: [1]}":              "golden.inputs must name each input",
		"golden: {inputs: {x: 1}}":           "golden.inputs.x must be a list of rows",
		"golden: {inputs: {x: []}}":          "golden.inputs.x must be a list of rows",
		"golden: {inputs: {x: [1], x: [2]}}": "golden.inputs.x appears twice",
		"golden: " + strings.Repeat("[", 40) + strings.Repeat("]", 40): "nested more than",
		"# " + strings.Repeat("x", maxCard):                            "at most 262144 are read",
		"input: \xff":                                                  "UTF-8",
	} {
		if got, err := readCard([]byte(text)); err == nil || !unfit(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), CardFile) {
			t.Errorf("%.80q:\n%+v\n%v\nwant %s", text, got, err, want)
		}
	}
}

// Any input gives a card or an error that wraps ErrUnfit.
func FuzzCard(f *testing.F) {
	f.Add([]byte("input: text\noutput: p\nlabels: [a, b]\ngolden: {inputs: {x: [[1, 2]]}, label: a}\nlimits: {rows: 1, bytes: 1MiB}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := readCard(data); err != nil && !unfit(err) {
			t.Error(err)
		}
	})
}
