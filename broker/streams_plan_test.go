package broker

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// has is a found stream that matches its spec but for what is given.
func has(s StreamSpec, partitions, replication int, other ...wanted) foundStream {
	f := foundStream{partitions: partitions, replication: replication, settings: map[string]setting{}}
	for _, w := range append(settingsOf(s, replication), other...) {
		f.settings[w.key] = setting{value: w.value, own: true}
	}
	return f
}

func TestPlan(t *testing.T) {
	week := StreamSpec{Name: "messages", Partitions: 8, Retention: 7 * 24 * time.Hour, KeyOrdered: true}
	free := StreamSpec{Name: "progress", Partitions: 8, Retention: time.Hour}
	ever := StreamSpec{Name: "facts", Partitions: 8, KeyOrdered: true, Builtin: true}
	inherited := has(ever, 8, 1)
	inherited.settings = maps.Clone(inherited.settings)
	inherited.settings["cleanup.policy"] = setting{value: "delete"}

	for name, c := range map[string]struct {
		spec    StreamSpec
		found   map[string]foundStream
		brokers int
		o       EnsureOptions
		changes string // each change, as printed below
		drift   string
		unknown string
		warns   bool
	}{
		"missing, one broker": {spec: week, brokers: 1, warns: true,
			changes: "messages created: → 8 partitions, replication 1"},
		"missing, three brokers": {spec: week, brokers: 3,
			changes: "messages created: → 8 partitions, replication 3"},
		"missing, two asked for": {spec: week, brokers: 3, o: EnsureOptions{Replication: 2}, warns: true,
			changes: "messages created: → 8 partitions, replication 2"},
		"as it should be": {spec: week, brokers: 3, found: map[string]foundStream{"messages": has(week, 8, 3)}},
		"never compact": {spec: ever, brokers: 3,
			found:   map[string]foundStream{"facts": has(ever, 8, 3, wanted{"cleanup.policy", "compact"})},
			changes: "facts cleanup.policy: compact → delete"},
		"a default may change": {spec: ever, brokers: 1, warns: true,
			found:   map[string]foundStream{"facts": inherited},
			changes: "facts cleanup.policy: delete → delete"},
		"retention": {spec: week, brokers: 3,
			found:   map[string]foundStream{"messages": has(week, 8, 3, wanted{settingRetention, "-1"})},
			changes: "messages retention.ms: -1 → 604800000"},
		"stricter than we": {spec: ever, brokers: 5,
			found: map[string]foundStream{"facts": has(ever, 8, 5, wanted{settingMinInsync, "3"})}},
		"more in sync than replicas": {spec: ever, brokers: 1, warns: true,
			found:   map[string]foundStream{"facts": has(ever, 8, 1, wanted{settingMinInsync, "2"})},
			changes: "facts min.insync.replicas: 2 → 1"},
		"grows without order": {spec: free, brokers: 3,
			found:   map[string]foundStream{"progress": has(free, 4, 3)},
			changes: "progress partitions: 4 → 8"},
		"keeps order": {spec: week, brokers: 3,
			found: map[string]foundStream{"messages": has(week, 4, 3)},
			drift: "messages partitions: want 8 have 4: … --reorder"},
		"reorders when told": {spec: week, brokers: 3, o: EnsureOptions{Reorder: true},
			found:   map[string]foundStream{"messages": has(week, 4, 3)},
			changes: "messages partitions: 4 → 8"},
		"never shrinks": {spec: free, brokers: 3, o: EnsureOptions{Reorder: true},
			found: map[string]foundStream{"progress": has(free, 9, 3)},
			drift: "progress partitions: want 8 have 9: … partitions: 9"},
		"too few replicas": {spec: free, brokers: 3,
			found: map[string]foundStream{"progress": has(free, 8, 1)},
			drift: "progress replication: want 3 have 1: … kafka-reassign-partitions"},
		"unknown": {spec: free, brokers: 3,
			found:   map[string]foundStream{"progress": has(free, 8, 3), "old": has(free, 8, 3)},
			unknown: "old"},
	} {
		t.Run(name, func(t *testing.T) {
			todo, report, err := plan([]StreamSpec{c.spec}, foundStreams{brokers: c.brokers, streams: c.found}, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := printChanges(todo.changes()); got != c.changes {
				t.Errorf("changes %q, not %q", got, c.changes)
			}
			checkDrift(t, report.Drift, c.drift)
			if got := strings.Join(report.Unknown, " "); got != c.unknown {
				t.Errorf("unknown %q, not %q", got, c.unknown)
			}
			if (len(report.Warnings) > 0) != c.warns {
				t.Errorf("warnings %q", report.Warnings)
			}
		})
	}
}

func printChanges(all []Change) string {
	var lines []string
	for _, c := range all {
		from := c.From
		if from != "" {
			from += " "
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s→ %s", c.Stream, c.What, from, c.To))
	}
	return strings.Join(lines, "\n")
}

func checkDrift(t *testing.T, all []Drift, want string) {
	t.Helper()
	if want == "" {
		if len(all) > 0 {
			t.Errorf("drift %+v", all)
		}
		return
	}
	head, next, _ := strings.Cut(want, "… ")
	if len(all) != 1 {
		t.Fatalf("drift %+v", all)
	}
	d := all[0]
	if got := fmt.Sprintf("%s %s: want %s have %s: ", d.Stream, d.What, d.Want, d.Have); got != head || !strings.Contains(d.Next, next) || d.Why == "" {
		t.Errorf("drift %+v", d)
	}
}

func TestPlanRefusesMoreReplicasThanBrokers(t *testing.T) {
	if _, _, err := plan(nil, foundStreams{brokers: 2}, EnsureOptions{Replication: 3}); err == nil {
		t.Error("no error")
	}
}
