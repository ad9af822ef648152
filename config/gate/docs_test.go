package gate

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every clause in docs/gates.md can be parsed, and the page describes every name.
func TestDocumentedClauses(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/gates.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```cel\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatal("the page shows no clauses")
	}
	for _, block := range blocks {
		for _, clause := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			if err := Check(clause); err != nil {
				t.Errorf("%s: %v", clause, err)
			}
		}
	}
	for name, s := range world().fields {
		if !strings.Contains(string(text), "| `"+name+".") {
			t.Errorf("the page says nothing of %s", name)
		}
		below := s
		if s.each != nil {
			below = s.each
		}
		for field := range below.fields {
			if !regexp.MustCompile("`" + name + `\.([A-Z]+\.)?` + field + "|`\\." + field + "`").Match(text) {
				t.Errorf("the page says nothing of %s.%s", name, field)
			}
		}
	}
}

// Clauses from the page give the results that the page describes.
func TestDocumentedClausesDecide(t *testing.T) {
	t.Parallel()
	for clause, want := range map[string]bool{
		"champion.lead.low > -0.02": true,
		"confusion.classes.all(c, confusion.classes[c].support < 20 || confusion.classes[c].f1 >= 0.6)":                                             true,
		"confusion.classes.all(c, !(c in champion.confusion.classes) || confusion.classes[c].recall >= champion.confusion.classes[c].recall - 0.1)": true,
		"has(metrics.latencyMs) && metrics.latencyMs < 20":                                                                                          false,
		"run.bytes < 50 * 1024 * 1024": true,
	} {
		if got := judge(t, facts(), clause); got.Passed != want {
			t.Errorf("%s: %+v", clause, got)
		}
	}
}
