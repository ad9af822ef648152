//go:build slow && templates && unix

package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/ort"
)

// A newcomer gets from the template to a model of another table, which scores a stream. A stricter
// gate refuses its next version.
func TestTemplateTabularIsFollowed(t *testing.T) {
	t.Parallel()
	began := time.Now()
	g := openGuide(t, "docs/tabular.md", t.TempDir())
	g.env = withRuntime(t)
	mention(t, "init", g.do(), "wrote ", "installing them", "Next:")
	mention(t, "put", g.do(), "payments/books", "fraud")
	g.until("models show fraud/books@1", ", champion:")
	mention(t, "the champion", g.do(), "passes: macroF1", "Confusion matrix", "with engine go")
	g.do()
	g.answered("scores", "model=fraud/books", 6)
	mention(t, "scores", g.do(), `{"label":"fraud",`, `{"label":"fine",`, "causationid=payment-1")
	g.until("dead-letters", "phones")

	leave(t, plants(), filepath.Dir(g.dir), "plants.csv")
	g.do()
	g.applied(1)
	g.edit("trainer/train.py")
	mention(t, "try", g.do(), "numbers ['length', 'width'], texts ['colour']", "holds  metrics.macroF1 >= 0.75", "rose")
	g.do()
	g.until("models show species/meadow@1", ", champion:")
	g.do()
	g.answered("scores", "model=species/meadow", 1)
	mention(t, "the plant's score", g.do(), `{"label":"iris",`)

	g.do()
	g.applied(2)
	g.do()
	g.until("models show species/meadow@2", ", refused:")
	mention(t, "a stricter gate", g.do(), "metrics.macroF1 >= 0.999", "champion.metrics.macroF1", "Confusion matrix")
	g.do()
	for _, name := range []string{"model.onnx", "model.yaml", "predictions.csv", "metrics.json", "metrics.jsonl"} {
		if _, err := os.Stat(filepath.Join(g.dir, "champion", name)); err != nil {
			t.Error(err)
		}
	}
	g.end()
	machine := time.Since(began).Minutes()
	reading, typing := minutesOf(pathToTabular(t))
	t.Logf("%.1f minutes of reading, %.1f of typing, %.1f of the machine: %.1f together", reading, typing, machine, reading+typing+machine)
}

// withRuntime returns the variable that names ONNX Runtime. TestMain removes it from the environment
// of the tests, so make gives it another name.
func withRuntime(t *testing.T) []string {
	t.Helper()
	library := os.Getenv("TEST_ONNXRUNTIME")
	if library == "" {
		t.Fatal("TEST_ONNXRUNTIME is not set: run make test-python")
	}
	return []string{ort.Variable + "=" + library}
}

// answered waits until a stream has n answers of a model.
func (g *guide) answered(stream, by string, n int) {
	g.Helper()
	eventually(g.T, func() bool {
		return strings.Count(g.until("tail "+stream+" --from beginning --no-follow"), by+" ") == n
	})
}

// edit applies the next block of Python to a file: each of its lines replaces the line that sets
// the same variable.
func (g *guide) edit(file string) {
	g.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		g.Fatal(err)
	}
	for b := g.blocks[g.next]; strings.Contains(b.text, "\n"); {
		var line string
		line, b.text, _ = strings.Cut(b.text, "\n")
		name, _, _ := strings.Cut(line, " ")
		of := regexp.MustCompile(`(?m)^` + name + ` = .*$`)
		if len(of.FindAll(text, -1)) != 1 {
			g.Fatalf("%s does not set %s once", file, name)
		}
		text = of.ReplaceAllLiteral(text, []byte(line))
	}
	leave(g.T, string(text), g.dir, file)
}

// plants returns a table that the template does not know.
func plants() string {
	var b strings.Builder
	b.WriteString("id,length,width,colour,species\n")
	r := rand.New(rand.NewPCG(4, 5))
	for i := range 300 {
		kind := i % 3
		length, width := fmt.Sprintf("%.1f", 5+float64(kind)+0.45*r.NormFloat64()), fmt.Sprintf("%.1f", 3.5-0.5*float64(kind)+0.2*r.NormFloat64())
		if i%17 == 0 {
			width = ""
		}
		colours := [][]string{{"blue", "violet"}, {"red", "violet"}, {"red", "white"}}[kind]
		fmt.Fprintf(&b, "%d,%s,%s,%s,%s\n", 1000+i, length, width, colours[r.IntN(2)], []string{"iris", "rose", "tulip"}[kind])
	}
	return b.String()
}
