package broker

import (
	"slices"
	"testing"
	"time"
)

// A parked companion follows its source as it is, not as the config wants it.
func TestPlanCompanions(t *testing.T) {
	week := StreamSpec{Name: "messages", Partitions: 8, Retention: 7 * 24 * time.Hour, KeyOrdered: true}
	free := week
	free.KeyOrdered = false
	parked := StreamSpec{Name: "messages.parked", Partitions: 8, Retention: week.Retention, KeyOrdered: true, Builtin: true}
	size := func(bytes string) wanted { return wanted{settingMessageSize, bytes} }

	for name, c := range map[string]struct {
		source  StreamSpec
		found   map[string]foundStream
		changes string
		drift   string
	}{
		"both are missing": {source: week,
			changes: "messages created: → 8 partitions, replication 3\nmessages.parked created: → 8 partitions, replication 3"},
		"then its size is known": {source: week,
			found:   map[string]foundStream{"messages": has(week, 8, 3, size("1000000")), "messages.parked": has(parked, 8, 3)},
			changes: "messages.parked max.message.bytes: → 1065536"},
		"as it should be": {source: week,
			found: map[string]foundStream{"messages": has(week, 8, 3, size("1000000")), "messages.parked": has(parked, 8, 3, size("1065536"))}},
		"larger than need be": {source: week,
			found: map[string]foundStream{"messages": has(week, 8, 3, size("1000000")), "messages.parked": has(parked, 12, 3, size("2000000"))}},
		"the largest there is": {source: week,
			found: map[string]foundStream{"messages": has(week, 8, 3, size("2147483647")), "messages.parked": has(parked, 8, 3, size("2147483647"))}},
		"the source has more than the config says": {source: week,
			found:   map[string]foundStream{"messages": has(week, 48, 3, size("1000000"))},
			changes: "messages.parked created: → 48 partitions, replication 3",
			drift:   "messages partitions: want 8 have 48: … partitions: 48"},
		"the source has more than its companion": {source: week,
			found:   map[string]foundStream{"messages": has(week, 48, 3, size("1000000")), "messages.parked": has(parked, 8, 3, size("1065536"))},
			changes: "messages.parked partitions: 8 → 48",
			drift:   "messages partitions: want 8 have 48: … partitions: 48"},
		"the source must not grow": {source: week,
			found:   map[string]foundStream{"messages": has(week, 4, 3, size("1000000"))},
			changes: "messages.parked created: → 4 partitions, replication 3",
			drift:   "messages partitions: want 8 have 4: … --reorder"},
		"the source grows": {source: free,
			found:   map[string]foundStream{"messages": has(free, 4, 3, size("1000000")), "messages.parked": has(parked, 4, 3, size("1065536"))},
			changes: "messages partitions: 4 → 8"},
		"and it does in the next round": {source: free,
			found:   map[string]foundStream{"messages": has(free, 8, 3, size("1000000")), "messages.parked": has(parked, 4, 3, size("1065536"))},
			changes: "messages.parked partitions: 4 → 8"},
	} {
		t.Run(name, func(t *testing.T) {
			todo, report, err := plan([]StreamSpec{c.source, parked}, foundStreams{brokers: 3, streams: c.found}, EnsureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := printChanges(todo.changes()); got != c.changes {
				t.Errorf("changes %q, not %q", got, c.changes)
			}
			checkDrift(t, report.Drift, c.drift)
		})
	}
}

// What has another name follows the stream that it says.
func TestPlanBeside(t *testing.T) {
	source := StreamSpec{Name: "messages", Partitions: 8, Retention: time.Hour, KeyOrdered: true}
	held := StreamSpec{Name: "scorer.intents.parked", Partitions: 8, Retention: time.Hour, KeyOrdered: true, Builtin: true, Beside: "messages"}
	todo, _, err := plan([]StreamSpec{source, held}, foundStreams{brokers: 3, streams: map[string]foundStream{
		"messages": has(source, 48, 3, wanted{settingMessageSize, "1000000"})}}, EnsureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := printChanges(todo.changes()); got != "scorer.intents.parked created: → 48 partitions, replication 3" {
		t.Errorf("changes %q", got)
	}
	if !slices.Contains(todo.create[0].settings, wanted{settingMessageSize, "1065536"}) {
		t.Errorf("the settings are %v", todo.create[0].settings)
	}
}

// What a trigger left behind is not a stranger's.
func TestPlanKnowsCompanions(t *testing.T) {
	s := StreamSpec{Name: "messages", Partitions: 8, Retention: time.Hour}
	_, report, err := plan([]StreamSpec{s}, foundStreams{brokers: 3, streams: map[string]foundStream{
		"messages": has(s, 8, 3), "messages.parked": has(s, 8, 3), "other.parked": has(s, 8, 3),
	}}, EnsureOptions{})
	if err != nil || len(report.Unknown) != 1 || report.Unknown[0] != "other.parked" {
		t.Errorf("unknown %q, %v", report.Unknown, err)
	}
}
