package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const file = "../tidemill/dashboards/tidemill.json"

func TestTheFileIsCurrent(t *testing.T) {
	want, err := boardJSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("the committed dashboard is not the one that the program writes: run make dashboard")
	}
}

// Prometheus reads each query of the board, and each metric and label in it exists.
func TestQueriesOfTheBoard(t *testing.T) {
	metrics := documented(t)
	count := 0
	for _, r := range rows() {
		for _, p := range r.panels {
			if count++; p.title == "" || p.description == "" || p.unit == "" || len(p.queries) == 0 {
				t.Errorf("panel %q of %q lacks a title, description, unit or query", p.title, r.title)
			}
			for _, q := range p.queries {
				expr := strings.NewReplacer(selector, namespace, "$__rate_interval", "1m").Replace(q.expr)
				checkQuery(t, p.title, expr, metrics)
			}
			if _, err := os.Stat(filepath.Join("../..", runbooks, p.runbook)); err != nil {
				t.Errorf("panel %q leads to a missing page: %v", p.title, err)
			}
		}
	}
	if count < 15 || count > 20 {
		t.Errorf("%d panels, want 15 to 20", count)
	}
}

// Prometheus reads each alert of the chart. Package charts compares the golden file with the chart.
func TestQueriesOfTheAlerts(t *testing.T) {
	metrics, alerts := documented(t), 0
	text, err := os.ReadFile("../testdata/everything.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n---\n") {
		var rule struct {
			Kind string
			Spec struct {
				Groups []struct {
					Rules []struct{ Alert, Expr string }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(part), &rule); err != nil || rule.Kind != "PrometheusRule" {
			continue
		}
		for _, g := range rule.Spec.Groups {
			for _, r := range g.Rules {
				alerts++
				checkQuery(t, r.Alert, r.Expr, metrics)
			}
		}
	}
	if alerts != 11 {
		t.Errorf("%d alerts, want 11", alerts)
	}
}

func checkQuery(t *testing.T, where, expr string, metrics map[string][]string) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", where, expr, err)
		return
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, is := n.(*parser.VectorSelector); is {
			checkSelector(t, where, s, metrics)
		}
		return nil
	})
}

func checkSelector(t *testing.T, where string, s *parser.VectorSelector, metrics map[string][]string) {
	t.Helper()
	labels, known := metrics[s.Name]
	if foreign := strings.HasPrefix(s.Name, "go_") || strings.HasPrefix(s.Name, "process_"); !known && !foreign {
		t.Errorf("%s: docs/metrics.md does not list %s", where, s.Name)
	}
	chosen := false
	for _, m := range s.LabelMatchers {
		chosen = chosen || m.Name == "namespace"
		if m.Name != "__name__" && m.Name != "namespace" && !slices.Contains(labels, m.Name) {
			t.Errorf("%s: %s has no label %s", where, s.Name, m.Name)
		}
	}
	if !chosen {
		t.Errorf("%s: %s is of every namespace", where, s.Name)
	}
}

var (
	metricRow = regexp.MustCompile("(?m)^\\| `(tidemill_[a-z_]+)` \\| ([a-z]+) \\| (.*?) \\|")
	labelOf   = regexp.MustCompile("`([a-z_]+)`")
)

// documented returns the labels of each series that docs/metrics.md lists. A test of internal/cli
// compares that page with the registered metrics.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		var labels []string
		for _, l := range labelOf.FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, l[1])
		}
		if all[m[1]] = labels; m[2] == "histogram" {
			delete(all, m[1])
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				all[m[1]+end] = labels
			}
		}
	}
	return all
}
