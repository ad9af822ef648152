package native

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"tidemill.dev/internal/infer/onnx"
	"tidemill.dev/internal/infer/tensor"
)

// caseChange is what is done to letters.
type caseChange uint8

const (
	asIs caseChange = iota
	lowerASCII
	upperASCII
	lowerAll
	upperAll
)

// caseOf reads what a node asks for. In the locales C and POSIX there are no
// letters but those of ASCII. All others are taken alike: letter by letter, as
// Unicode has it.
func caseOf(n *node) (caseChange, error) {
	ascii := slices.Contains([]string{"C", "POSIX"}, n.text("locale", "en_US"))
	switch action := n.text("case_change_action", "NONE"); action {
	case "NONE":
		return asIs, nil
	case "LOWER":
		if ascii {
			return lowerASCII, nil
		}
		return lowerAll, nil
	case "UPPER":
		if ascii {
			return upperASCII, nil
		}
		return upperAll, nil
	default:
		return asIs, fmt.Errorf("case_change_action %s %w", action, onnx.ErrUnsupported)
	}
}

// of is one letter.
func (c caseChange) of(r rune) rune {
	switch {
	case c == lowerASCII && 'A' <= r && r <= 'Z':
		return r + 'a' - 'A'
	case c == upperASCII && 'a' <= r && r <= 'z':
		return r + 'A' - 'a'
	case c == lowerAll:
		return unicode.ToLower(r)
	case c == upperAll:
		return unicode.ToUpper(r)
	}
	return r
}

func (c caseChange) text(s string) string {
	if c == asIs {
		return s
	}
	return strings.Map(c.of, s)
}

// stringNormalizer changes letters and leaves words out. The words are in a row.
func (c *compiler) stringNormalizer(n *node) error {
	if err := n.wants(1, 1); err != nil {
		return err
	}
	x := n.in[0]
	if x.kind != tensor.String {
		return fmt.Errorf("it is for texts, not for %s", typeName(x.kind))
	}
	if done, err := c.words(n); done || err != nil {
		return err
	}
	change, err := caseOf(n)
	if err != nil {
		return err
	}
	out := stopWords(n, change)
	y := c.output(n, 0, tensor.String, x.shape)
	from, to := x.ref, y.ref
	c.add(n.what(), []*value{x}, []*value{y}, func(s *state) error {
		in := s.get(from)
		if rank := len(in.Shape); rank != 1 && (rank != 2 || in.Shape[0] != 1) {
			return errors.New("it takes texts in a row, not in a table")
		}
		var kept []string
		for _, text := range in.Strings {
			if !out(text) {
				kept = append(kept, change.text(text))
			}
		}
		if len(kept) == 0 {
			kept = []string{""}
		}
		var room [2]int
		shape := append(room[:0], in.Shape...)
		shape[len(shape)-1] = len(kept)
		made, err := s.make(to, tensor.String, shape...)
		if err == nil {
			copy(made.Strings, kept)
		}
		return err
	})
	return nil
}

// stopWords says of a word whether it is left out.
func stopWords(n *node, change caseChange) func(string) bool {
	list := n.texts("stopwords")
	if n.integer("is_case_sensitive", 0) != 0 {
		return func(s string) bool { return slices.Contains(list, s) }
	}
	if change == asIs {
		change = lowerAll
	}
	changed := make([]string, len(list))
	for i, s := range list {
		changed[i] = change.text(s)
	}
	return func(s string) bool { return len(changed) > 0 && slices.Contains(changed, change.text(s)) }
}
