//go:build real

package charts_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// breaks is the minute at which the fault of each case begins.
const breaks = 30

// steady are the series of an install that is well. Two scrapes of the dispatcher fail.
func steady() map[string]string {
	return map[string]string{
		`tidemill_gateway_events_total{outcome="stored",stream="events"}`:                       "0+600x200",
		`tidemill_gateway_events_total{outcome="refused",stream="events"}`:                      "0x200",
		`tidemill_gateway_refused_total{reason="room"}`:                                         "0x200",
		`tidemill_trigger_oldest_waiting_seconds{trigger="crm"}`:                                "0x200",
		`tidemill_trigger_in_flight{trigger="crm"}`:                                             "1x40 stale stale 1x150",
		`tidemill_trigger_events_total{outcome="delivered",trigger="crm"}`:                      "0+60x200",
		`tidemill_trigger_events_total{outcome="dead-lettered",trigger="crm"}`:                  "0x200",
		`tidemill_stream_lag{group="triggers.events",stream="events"}`:                          "3x200",
		`tidemill_stream_lag{group="scorer.intents",stream="messages"}`:                         "5x200",
		`tidemill_scorer_events_total{outcome="scored",scorer="intents"}`:                       "0+60x200",
		`tidemill_scorer_events_total{outcome="dead-lettered",scorer="intents"}`:                "0x200",
		`tidemill_observer_lag_seconds{task="drift.intents"}`:                                   "2x200",
		`tidemill_stream_lag{group="outcomes.intents",stream="scored"}`:                         "7x200",
		`tidemill_controller_runs_waiting{recipe="intent"}`:                                     "2x200",
		`tidemill_controller_attempts_running{pool="default"}`:                                  "1x200",
		`tidemill_ledger_stopped{pod="a"}`:                                                      "0x200",
		`tidemill_run_attempts_ended_total{outcome="succeeded",recipe="intent"}`:                "0+1x200",
		`tidemill_run_attempts_ended_total{outcome="failed",recipe="intent"}`:                   "0x200",
		`tidemill_controller_versions_judged_total{pod="a",recipe="intent",verdict="promoted"}`: "0+1x200",
		`tidemill_controller_versions_judged_total{pod="a",recipe="intent",verdict="refused"}`:  "0x200",
		`tidemill_controller_newest_champion_timestamp_seconds{pod="a",recipe="intent"}`:        "0+60x200",
		`tidemill_clock_active{pod="a"}`:                                                        "1x200",
		`tidemill_clock_active{pod="b"}`:                                                        "0x200",
	}
}

// fault is a change of series, and the alert that it leads to; empty if it leads to none.
type fault struct {
	name, alert   string
	series        map[string]string // series that differ from the steady ones; empty: the series ends
	silent, fires int               // last minute at which the alert must be silent, and the first at which it must fire
	labels        map[string]string
	summary       string
}

// faults has every alert. The values begin to differ at minute 30.
func faults() []fault {
	return []fault{
		{"half of the events are refused", "TidemillPublishingRefused", map[string]string{
			`tidemill_gateway_events_total{outcome="refused",stream="events"}`: "0x29 600+600x150"},
			34, 35, map[string]string{"severity": "critical"}, "The gateway refuses 50% of what is published."},
		{"the gateway has no room", "TidemillPublishingRefused", map[string]string{
			`tidemill_gateway_refused_total{reason="room"}`: "0x29 600+600x150"},
			34, 35, map[string]string{"severity": "critical"}, "The gateway refuses 50% of what is published."},
		{"a subscriber is away", "TidemillOldestEvent", map[string]string{
			`tidemill_trigger_oldest_waiting_seconds{trigger="crm"}`: "0x29 60+60x150"},
			45, 46, map[string]string{"severity": "warning", "trigger": "crm"},
			"Events of crm are not delivered: one waits for more than 15m, or no dispatcher is there."},
		{"no dispatcher is there", "TidemillOldestEvent", map[string]string{
			`tidemill_trigger_in_flight{trigger="crm"}`: "1x29 stale"},
			35, 36, map[string]string{"severity": "warning", "group": "triggers.events"},
			"Events of triggers.events are not delivered: one waits for more than 15m, or no dispatcher is there."},
		{"a scorer does not continue", "TidemillScorerStops", map[string]string{
			`tidemill_scorer_events_total{outcome="scored",scorer="intents"}`: "0+60x29 1740x150"},
			37, 40, map[string]string{"severity": "critical", "scorer": "intents"},
			"5 events wait for the scorer intents, which has finished none for ten minutes."},
		{"a new scorer has a backlog, and its pods need some minutes to start", "", map[string]string{
			`tidemill_stream_lag{group="scorer.new",stream="messages"}`:   "_x29 5000x150",
			`tidemill_scorer_events_total{outcome="scored",scorer="new"}`: "_x29 0x3 600+600x150"},
			33, 36, nil, ""},
		{"the observer is too slow", "TidemillObserverBehind", map[string]string{
			`tidemill_observer_lag_seconds{task="drift.intents"}`: "2x29 60+60x150"},
			64, 65, map[string]string{"severity": "warning", "task": "drift.intents"},
			"Outcomes, live figures or drift are out of date: drift.intents is behind by more than 30m, or no observer is there."},
		{"no observer is there", "TidemillObserverBehind", map[string]string{
			`tidemill_observer_lag_seconds{task="drift.intents"}`: "2x29 stale"},
			34, 35, map[string]string{"severity": "warning", "task": "outcomes.intents", "group": "outcomes.intents"},
			"Outcomes, live figures or drift are out of date: outcomes.intents is behind by more than 30m, or no observer is there."},
		{"a trigger has a dead letter", "TidemillDeadLetters", map[string]string{
			`tidemill_trigger_events_total{outcome="dead-lettered",trigger="crm"}`: "0x29 14x150"},
			29, 30, map[string]string{"severity": "warning", "trigger": "crm"},
			"14 events became dead letters within a quarter of an hour (crm)."},
		{"a scorer has a dead letter", "TidemillDeadLetters", map[string]string{
			`tidemill_scorer_events_total{outcome="dead-lettered",scorer="intents"}`: "0x29 14x150"},
			29, 30, map[string]string{"severity": "warning", "scorer": "intents"},
			"14 events became dead letters within a quarter of an hour (intents)."},
		{"nothing runs", "TidemillNothingStarts", map[string]string{
			`tidemill_controller_attempts_running{pool="default"}`: "1x29 0x150"},
			59, 60, map[string]string{"severity": "critical", "recipe": "intent"},
			"Runs of intent have waited for 30m, and nothing has started."},
		{"nothing runs, and some scrapes fail", "TidemillNothingStarts", map[string]string{
			`tidemill_controller_runs_waiting{recipe="intent"}`:    "2x39 stale stale 2x150",
			`tidemill_controller_attempts_running{pool="default"}`: "1x29 0x9 stale stale 0x150"},
			59, 60, map[string]string{"severity": "critical", "recipe": "intent"},
			"Runs of intent have waited for 30m, and nothing has started."},
		{"the ledger stops", "TidemillLedgerStopped", map[string]string{
			`tidemill_ledger_stopped{pod="a"}`: "0x29 1x150"},
			30, 31, map[string]string{"severity": "critical"}, "The ledger decides nothing until a person has acted."},
		{"every other attempt fails", "TidemillRunsFail", map[string]string{
			`tidemill_run_attempts_ended_total{outcome="failed",recipe="intent"}`: "0x29 1+1x150"},
			48, 49, map[string]string{"severity": "warning", "recipe": "intent"}, "28.99% of the attempts of intent failed within an hour."},
		{"every version is refused", "TidemillModelsRefused", map[string]string{
			`tidemill_controller_versions_judged_total{pod="a",recipe="intent",verdict="promoted"}`: "0+1x29 29x150",
			`tidemill_controller_versions_judged_total{pod="a",recipe="intent",verdict="refused"}`:  "0x29 1+1x150"},
			63, 64, map[string]string{"severity": "warning", "recipe": "intent"}, "54.69% of the versions of intent were refused by their gate within six hours."},
		{"no model is new", "TidemillModelsStale", map[string]string{
			`tidemill_controller_newest_champion_timestamp_seconds{pod="a",recipe="intent"}`: "-603000x200"},
			40, 41, map[string]string{"severity": "warning", "recipe": "intent"}, "The newest champion of intent is 7d 0h 11m 0s old."},
		{"no controller is active", "TidemillNoActiveController", map[string]string{
			`tidemill_clock_active{pod="a"}`: "1x29 0x150"},
			31, 32, map[string]string{"severity": "critical"}, "No controller is active; nothing ticks, and nothing that is lost is noticed."},
		{"no controller is there", "TidemillNoActiveController", map[string]string{
			`tidemill_clock_active{pod="a"}`: "1x29 stale", `tidemill_clock_active{pod="b"}`: "0x29 stale"},
			31, 32, map[string]string{"severity": "critical", "namespace": "ml"}, "No controller is active; nothing ticks, and nothing that is lost is noticed."},
	}
}

// A promtoolTest is a test of alerts in the form of promtool.
type promtoolTest struct {
	Name   string           `json:"name"`
	Every  string           `json:"interval"`
	Series []promtoolSeries `json:"input_series"`
	Alerts []promtoolAlert  `json:"alert_rule_test"`
}

type promtoolSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type promtoolAlert struct {
	At    string             `json:"eval_time"`
	Alert string             `json:"alertname"`
	Wants []promtoolExpected `json:"exp_alerts"`
}

type promtoolExpected struct {
	Labels      map[string]string `json:"exp_labels"`
	Annotations map[string]string `json:"exp_annotations"`
}

// Prometheus evaluates the alerts of the chart, unchanged, over the series of each fault: an alert
// fires when its time has passed, not a minute before, and no other alert fires.
func TestRealAlertsFire(t *testing.T) {
	dir := t.TempDir()
	rules := rulesOfChart(t)
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	var tests []promtoolTest
	tested := map[string]bool{}
	for _, f := range faults() {
		if f.alert != "" {
			tested[f.alert] = true
		}
		tests = append(tests, f.test())
	}
	if all := strings.Count(rules, "- alert: "); all != len(tested) {
		t.Errorf("%d of %d alerts have a fault", len(tested), all)
	}
	text, err := json.Marshal(map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests}) // JSON is YAML, too
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tests.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// rulesOfChart returns the alerts as a file of rules. TestRenders compares the golden file with the
// chart.
func rulesOfChart(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/everything.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rule, found := strings.Cut(string(text), "\nkind: PrometheusRule\n")
	_, rules, _ := strings.Cut(rule, "\nspec:\n")
	rules, _, _ = strings.Cut(rules, "\n---\n")
	if !found {
		t.Fatal("the golden file has no alerts")
	}
	return rules
}

func (f fault) test() promtoolTest {
	series := steady()
	maps.Copy(series, f.series)
	test := promtoolTest{Name: f.name, Every: "1m"}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		test.Series = append(test.Series, promtoolSeries{strings.Replace(name, "{", `{namespace="ml",`, 1), series[name]})
	}
	page := map[string]string{}
	for _, other := range faults() {
		if other.alert != "" {
			page[other.alert] = runbookOf(other.alert)
		}
	}
	for alert, page := range page {
		if alert != f.alert {
			for _, minute := range []int{breaks - 1, f.silent, f.fires} {
				test.Alerts = append(test.Alerts, promtoolAlert{At: minutes(minute), Alert: alert, Wants: []promtoolExpected{}})
			}
			continue
		}
		test.Alerts = append(test.Alerts,
			promtoolAlert{At: minutes(breaks - 1), Alert: alert, Wants: []promtoolExpected{}},
			promtoolAlert{At: minutes(f.silent), Alert: alert, Wants: []promtoolExpected{}},
			promtoolAlert{At: minutes(f.fires), Alert: alert, Wants: []promtoolExpected{
				{f.labels, map[string]string{"summary": f.summary, "runbook_url": "https://runbooks.example/" + page}}}})
	}
	return test
}

// runbookOf returns the page of an alert: publishing-refused.md of TidemillPublishingRefused.
func runbookOf(alert string) string {
	var b strings.Builder
	for i, r := range strings.TrimPrefix(alert, "Tidemill") {
		if r < 'a' && i > 0 {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String()) + ".md"
}

func minutes(n int) string { return fmt.Sprintf("%dm", n) }
