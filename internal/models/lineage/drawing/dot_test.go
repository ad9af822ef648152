package drawing_test

import (
	"regexp"
	"strings"
	"testing"

	"tidemill.dev/internal/models/lineage/drawing"
)

// All text outside quotes is ours, whatever the graph contains.
func TestDOTHoldsWhatIsHostile(t *testing.T) {
	t.Parallel()
	g := hostile()
	outside, quoted := lexStrings(t, drawn(t, drawing.DOT, g))
	node := `  Q \[label=Q, tooltip=Q, fillcolor=Q, penwidth=[13]\];\n`
	want := regexp.MustCompile(`^digraph why \{\n  rankdir=LR;\n  node \[shape=box, style=Q, fontname=Q, fontsize=11\];\n  edge \[fontname=Q, fontsize=9\];\n(` +
		node + `){3}(  Q -> Q \[label=Q\];\n){4}  // [^\n]*\n\}\n$`)
	if !want.MatchString(outside) {
		t.Errorf("outside of quotes it is\n%s", outside)
	}
	for _, text := range quoted {
		if rest := regexp.MustCompile(`\\[\\"n]`).ReplaceAllString(text, ""); strings.Contains(rest, `\`) {
			t.Errorf("Graphviz reads a backslash in %s", text)
		}
	}
}

// lexStrings separates the strings of DOT from the rest, as Graphviz does: a quote after a backslash
// ends no string, and a comment begins none.
func lexStrings(t *testing.T, text string) (outside string, quoted []string) {
	t.Helper()
	var out, in strings.Builder
	open, comment := false, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case open && c == '\\' && i+1 < len(text):
			in.WriteString(text[i : i+2])
			i++
		case open && c == '"':
			quoted = append(quoted, in.String())
			in.Reset()
			open = false
			out.WriteByte('Q')
		case open:
			in.WriteByte(c)
		case !comment && c == '"':
			open = true
		default:
			comment = comment && c != '\n' || strings.HasPrefix(text[i:], "//")
			out.WriteByte(c)
		}
	}
	if open {
		t.Fatalf("a string does not end:\n%s", text)
	}
	return out.String(), quoted
}
