//go:build slow

package charts_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Grafana's sidecar finds the board by its label, and the links of the board lead to the runbooks.
func TestBoardForGrafana(t *testing.T) {
	want, err := os.ReadFile("tidemill/dashboards/tidemill.json")
	if err != nil {
		t.Fatal(err)
	}
	text := render(t, "testdata/everything.values.yaml", "--set", "metrics.dashboard.enabled=true", "--set", "metrics.dashboard.labels.folder=ml")
	for _, m := range objectsOf[*corev1.ConfigMap](objects(t, "board", text)) {
		if m.Name != "mill-dashboard" {
			continue
		}
		if m.Labels["grafana_dashboard"] != "1" || m.Labels["folder"] != "ml" {
			t.Errorf("the labels are %v", m.Labels)
		}
		if got := m.Data["tidemill.json"]; strings.TrimSpace(got) != strings.TrimSpace(strings.ReplaceAll(string(want), "docs/runbooks", "https://runbooks.example")) {
			t.Error("the ConfigMap has another board than the file")
		}
		return
	}
	t.Error("the chart has no board")
}
