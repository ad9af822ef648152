package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
)

// docs/metrics.md lists exactly the metrics of the program. If a row is wrong or missing, the test
// prints the right one.
func TestMetricsAreListed(t *testing.T) {
	registry := openMetrics(t)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	documented := documentedMetrics(t)
	registered := map[string]string{}
	for name, m := range registeredMetrics(t, registry, families) {
		registered[name] = m.row(documented[name])
		m.check(t)
	}
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		if row := registered[name]; documented[name] != row {
			t.Errorf("docs/metrics.md needs this row for %s:\n%s", name, row)
		}
	}
	for name := range documented {
		if registered[name] == "" {
			t.Errorf("docs/metrics.md lists %s, which nothing registers", name)
		}
	}
	lint(t, families)
}

// openMetrics opens every part that has metrics and returns the registry. A new part with metrics
// must be opened here.
func openMetrics(t *testing.T) *prometheus.Registry {
	t.Helper()
	conf, err := config.Parse("test.yaml", []byte("version: 1\nstreams: {scored: {partitions: 1}}\nscorers: {one: {from: events, to: scored, model: \"m/{key}\", types: [message], labels: {from: events, types: [verdict], match: {id: data.of}, truth: data.truth, wait: 1d}}}\ntriggers: {one: {when: {type: test}, to: {url: \"http://127.0.0.1:1\"}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig") // no cluster is reachable; its metrics are registered even so
	text := "apiVersion: v1\nkind: Config\ncurrent-context: t\ncontexts: [{name: t, context: {cluster: t}}]\nclusters: [{name: t, cluster: {server: \"http://127.0.0.1:1\"}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := platform.Open(t.Context(), platform.Options{Config: conf, Embedded: &embedded.Options{Dir: t.TempDir()}, OwnStreams: true,
		Runs:      &platform.RunsOptions{Data: t.TempDir(), Launch: true},
		Cluster:   &platform.ClusterOptions{Kubeconfig: kubeconfig},
		Telemetry: &telemetry.Options{Version: "v1", Getenv: func(string) string { return "" }}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connect.ClosePlatform(t.Context(), p); err != nil {
			t.Error(err)
		}
	})
	g, err := p.Gateway(t.Context(), platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(context.WithoutCancel(t.Context())) }() // the platform closes it
	if _, err := p.Controller(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err := p.Dispatcher(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	ok(t, "publish", "test", "--url", "http://"+g.Addr())
	if err := p.Scorers(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.Observer(t.Context()); err != nil {
		t.Fatal(err)
	}
	registry := p.Telemetry().Registry()
	awaitMetric(t, registry, "tidemill_outcomes_waiting") // the observer's tasks begin after it
	return registry
}

func awaitMetric(t *testing.T, r *prometheus.Registry, name string) {
	t.Helper()
	eventually(t, func() bool {
		families, err := r.Gather()
		return err == nil && slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
	})
}

// registeredMetric is a registered metric, with or without a value.
type registeredMetric struct {
	name, kind, help string
	labels           []string
}

// row returns the metric's line in the document. A vector without a value does not reveal its type,
// so the type comes from the document.
func (m registeredMetric) row(documented string) string {
	if m.kind == "" {
		cells := strings.Split(documented, " | ")
		m.kind = cells[min(1, len(cells)-1)]
	}
	labels := ""
	if len(m.labels) > 0 {
		labels = "`" + strings.Join(m.labels, "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s |", m.name, m.kind, labels, m.help)
}

// unbounded are labels that could have as many values as there are events, bots or callers.
var unbounded = []string{"key", "subject", "bot", "model", "id", "token"}

func (m registeredMetric) check(t *testing.T) {
	if !strings.HasPrefix(m.name, "tidemill_") {
		t.Errorf("%s: the name does not begin with tidemill_", m.name)
	}
	for _, label := range m.labels {
		if slices.Contains(unbounded, label) {
			t.Errorf("%s has the label %s, which has too many values", m.name, label)
		}
	}
}

// described parses a description as client_golang prints it. This is the only way to list
// registered metrics without a value.
var (
	described  = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)
	varLabel   = regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
)

func registeredMetrics(t *testing.T, registry *prometheus.Registry, families []*dto.MetricFamily) map[string]registeredMetric {
	t.Helper()
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descs)
		close(descs)
	}()
	all := map[string]registeredMetric{}
	for d := range descs {
		parts := described.FindStringSubmatch(d.String())
		if parts == nil {
			t.Errorf("what is registered as %s?", d)
			continue
		}
		m := registeredMetric{name: unquote(parts[1]), help: unquote(parts[2])}
		for _, l := range constLabel.FindAllStringSubmatch(parts[3], -1) {
			m.labels = append(m.labels, l[1])
		}
		m.labels = append(m.labels, varLabel.FindAllString(parts[4], -1)...)
		slices.Sort(m.labels)
		if m.kind = kinds[m.name]; !strings.HasPrefix(m.name, "go_") && !strings.HasPrefix(m.name, "process_") {
			all[m.name] = m
		}
	}
	return all
}

func unquote(s string) string {
	plain, err := strconv.Unquote(s)
	if err != nil {
		return err.Error()
	}
	return plain
}

func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	all := map[string]string{}
	last := ""
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|.*\\|$").FindAllStringSubmatch(section, -1) {
		if all[m[1]] = m[0]; m[1] < last {
			t.Errorf("docs/metrics.md: %s stands behind %s", m[1], last)
		}
		last = m[1]
	}
	return all
}

// lint holds the names to what Prometheus recommends.
func lint(t *testing.T, families []*dto.MetricFamily) {
	t.Helper()
	ours := slices.DeleteFunc(slices.Clone(families), func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "tidemill_") })
	problems, err := promlint.NewWithMetricFamilies(ours).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
