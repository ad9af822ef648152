//go:build slow

package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metricIn finds the names of our metrics in an expression.
var metricIn = regexp.MustCompile(`\btidemill_[a-z_]+`)

// alertsOf returns the alerts of a case.
func alertsOf(t *testing.T, name string) (all []alert) {
	t.Helper()
	for _, r := range objectsOf[*prometheusRule](rendered(t, name)) {
		for _, g := range r.Spec.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// Alerts use only existing metrics. internal/cli compares docs/metrics.md with the exported
// metrics, and this test compares the alerts with that page.
func TestAlertsGoByWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := alertsOf(t, "everything")
	if len(all) != 11 {
		t.Errorf("%d alerts, want 11", len(all))
	}
	for _, a := range all {
		metrics := metricIn.FindAllString(a.Expr, -1)
		if len(metrics) == 0 {
			t.Errorf("%s goes by nothing of ours: %s", a.Alert, a.Expr)
		}
		for _, m := range metrics {
			row := rowOf(string(text), m)
			if row == "" {
				t.Errorf("%s goes by %s, which docs/metrics.md does not have", a.Alert, m)
			}
			for _, label := range labelsIn(a.Expr, m) {
				if !slices.Contains([]string{"namespace"}, label) && !strings.Contains(row, "`"+label+"`") {
					t.Errorf("%s selects by the label %s, which %s does not have", a.Alert, label, m)
				}
			}
		}
		if a.Labels["severity"] == "" || a.Annotations["summary"] == "" {
			t.Errorf("%s does not say how bad it is, or what", a.Alert)
		}
		if open, shut := strings.Count(a.Expr, "("), strings.Count(a.Expr, ")"); open != shut {
			t.Errorf("%s: %d ( and %d ) in %s", a.Alert, open, shut, a.Expr)
		}
	}
}

func rowOf(text, metric string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `"+metric+"` |") {
			return line
		}
	}
	return ""
}

var labelIn = regexp.MustCompile(`([a-z_]+)(?:=~|!=|!~|=)"`)

// labelsIn returns the labels by which an expression selects a metric.
func labelsIn(expr, metric string) (labels []string) {
	for _, m := range regexp.MustCompile(metric+`\{([^}]*)\}`).FindAllStringSubmatch(expr, -1) {
		for _, l := range labelIn.FindAllStringSubmatch(m[1], -1) {
			labels = append(labels, l[1])
		}
	}
	return labels
}

// Every alert has a page, and every page has an alert. internal/cli runs the commands of the pages.
func TestAlertsHaveRunbooks(t *testing.T) {
	var wanted []string
	for _, a := range alertsOf(t, "everything") {
		name, ours := strings.CutPrefix(a.Annotations["runbook_url"], "https://runbooks.example/")
		text, err := os.ReadFile(filepath.Join("../docs/runbooks", name))
		if err != nil || !ours {
			t.Errorf("%s has no page: %v", a.Alert, err)
			continue
		}
		wanted = append(wanted, name)
		for _, part := range []string{a.Alert, "\n## What it means\n", "\n## What to look at\n", "\n## What to do\n"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not have %q", name, strings.TrimSpace(part))
			}
		}
	}
	pages, err := filepath.Glob("../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if !slices.Contains(wanted, filepath.Base(p)) {
			t.Errorf("no alert leads to %s", p)
		}
	}
}
