package gate

import (
	"strings"
	"testing"
)

// A clause whose value doubles with each word is refused when it is parsed, because comparing
// the value takes a single step that would not end.
func TestClausesThatGrow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`[[1]]` + strings.Repeat(`.map(a, a + a + a + a)`, 20) + `.exists(a, a == a)`,
		`[[1]]` + strings.Repeat(`.map(a, [a, a, a, a])`, 20) + `.exists(a, a == a)`,
		`[1]` + strings.Repeat(`.map(a, {"a": a, "b": a})`, 25) + `.exists(a, a == a)`,
		`[1]` + strings.Repeat(`.map(a, {a: a})`, 25) + `.size() > 0`,
		`[dyn("aaaaaaaaaaaaaaaa")]` + strings.Repeat(`.map(a, a + a + a + a)`, 20) + `.exists(a, size(a) > 5)`,
		`metrics` + strings.Repeat(`.map(a, true ? a + a : a)`, 20) + `.exists(a, size(a) > 5)`,
		`["a"].exists(x, ` + strings.Repeat(`[x + x + x + x].exists(x, `, 10) + `x == "a"` + strings.Repeat(`)`, 11),
	} {
		if err := Check(text); err == nil || !strings.Contains(err.Error(), "are too large") {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// Clauses that people really write do not grow.
func TestClausesThatDoNotGrow(t *testing.T) {
	t.Parallel()
	labels := `["` + strings.Join(strings.Split(strings.Repeat("greet", 60), "e"), `", "`) + `"]`
	for _, text := range []string{
		labels + `.filter(c, c in confusion.classes).all(c, confusion.classes[c].f1 >= 0.6 && metrics["f1_" + c + "_" + c] > 0.1)`,
		`confusion.classes.map(c, confusion.classes[c].f1).filter(f, f < 0.5).size() < 3`,
		`confusion.classes.all(c, confusion.matrix[c].all(d, c == d || confusion.matrix[c][d] < 3))`,
		`[metrics.a, metrics.b, metrics.c].map(m, m * 2.0 + m).exists_one(m, m > 1.0 + metrics.a)`,
		strings.Repeat(`metrics.accuracy + `, 30) + `metrics.accuracy > 0.5`,
	} {
		if err := Check(text); err != nil {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}
