package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
)

func openFake(t *testing.T, opts ...kfake.Opt) (*Broker, *kfake.Cluster) {
	t.Helper()
	c := fakeCluster(t, append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	return openAt(t, strings.Join(c.ListenAddrs(), ",")), c
}

func openAt(t *testing.T, addr string) *Broker {
	t.Helper()
	b, err := Open(t.Context(), options(t, addr, Security{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func ensure(t *testing.T, b *Broker, o EnsureOptions, specs ...StreamSpec) EnsureReport {
	t.Helper()
	report, err := b.EnsureStreams(t.Context(), specs, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestEnsureStreams(t *testing.T) {
	b, c := openFake(t)
	if err := c.CreateTopic("prod.old", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateTopic("foreign", 1, nil); err != nil {
		t.Fatal(err)
	}
	events := StreamSpec{Name: "events", Partitions: 3, Retention: time.Hour, KeyOrdered: true, MaxMessageBytes: 2 << 20}
	facts := StreamSpec{Name: "facts", Partitions: 2, KeyOrdered: true, Builtin: true}

	dry := ensure(t, b, EnsureOptions{DryRun: true}, events, facts)
	if len(dry.Changes) != 2 || c.TopicInfo("prod.events") != nil {
		t.Fatalf("dry run: %+v", dry)
	}
	first := ensure(t, b, EnsureOptions{}, events, facts)
	if len(first.Changes) != 2 || len(first.Warnings) != 1 || strings.Join(first.Unknown, " ") != "old" {
		t.Fatalf("first: %+v", first)
	}
	mustSet(t, c, "prod.events", "cleanup.policy=delete retention.ms=3600000 retention.bytes=-1 max.message.bytes=2097152 min.insync.replicas=1")
	mustSet(t, c, "prod.facts", "cleanup.policy=delete retention.ms=-1 retention.bytes=-1")
	if again := ensure(t, b, EnsureOptions{}, events, facts); len(again.Changes)+len(again.Drift) != 0 {
		t.Fatalf("again: %+v", again)
	}

	events.Retention, events.Partitions = 2*time.Hour, 5
	changed := ensure(t, b, EnsureOptions{}, events, facts)
	if got := printChanges(changed.Changes); got != "events retention.ms: 3600000 → 7200000" || len(changed.Drift) != 1 {
		t.Fatalf("changed: %+v", changed)
	}
	reordered := ensure(t, b, EnsureOptions{Reorder: true}, events, facts)
	if got := printChanges(reordered.Changes); got != "events partitions: 3 → 5" || len(reordered.Drift) != 0 {
		t.Fatalf("reordered: %+v", reordered)
	}
	if n := len(c.PartitionInfos("prod.events")); n != 5 {
		t.Errorf("%d partitions", n)
	}
	facts.Partitions = 5
	kept := ensure(t, b, EnsureOptions{Reorder: true}, events, facts)
	if len(kept.Changes) != 0 || len(c.PartitionInfos("prod.facts")) != 2 {
		t.Errorf("facts got partitions: %+v", kept)
	}
	checkDrift(t, kept.Drift, "facts partitions: want 5 have 2: … set partitions: 2 ")
}

func mustSet(t *testing.T, c *kfake.Cluster, topic, settings string) {
	t.Helper()
	configs := c.TopicInfo(topic).Configs
	for one := range strings.FieldsSeq(settings) {
		key, want, _ := strings.Cut(one, "=")
		if got := configs[key]; got == nil || *got != want {
			t.Errorf("%s: %s is %v, not %s", topic, key, got, want)
		}
	}
}

func TestEnsureStreamsInAClusterOfThree(t *testing.T) {
	c := fakeCluster(t, kfake.NumBrokers(3))
	b := openAt(t, strings.Join(c.ListenAddrs(), ","))
	report := ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 6})
	if len(report.Warnings) != 0 {
		t.Error(report.Warnings)
	}
	mustSet(t, c, "prod.events", "min.insync.replicas=2 unclean.leader.election.enable=false")
}

func TestEnsureStreamsByManyAtOnce(t *testing.T) {
	b, c := openFake(t)
	specs := []StreamSpec{{Name: "events", Partitions: 4}, {Name: "facts", Partitions: 4}, {Name: "progress", Partitions: 1}}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := b.EnsureStreams(t.Context(), specs, EnsureOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, s := range specs {
		if n := len(c.PartitionInfos(b.names.Topic(s.Name))); n != s.Partitions {
			t.Errorf("%s has %d partitions", s.Name, n)
		}
	}
}

func TestEnsureStreamsWaitsForLeaders(t *testing.T) {
	b, c := openFake(t)
	spec := StreamSpec{Name: "facts", Partitions: 1} // kafka-go asks for the stream events by itself at any time
	ensure(t, b, EnsureOptions{}, spec)
	var asked atomic.Int32
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !asksFor(req, "prod.facts") || asked.Add(1) > 3 {
			return nil, nil, false
		}
		return noLeader(req.(*kmsg.MetadataRequest)), nil, true
	})
	ensure(t, b, EnsureOptions{}, spec)
	if n := asked.Load(); n <= 3 {
		t.Errorf("did not wait: it was content with answer %d, which has no leader", n)
	}
}

func TestEnsureStreamsEndsWithItsContext(t *testing.T) {
	b, c := openFake(t)
	spec := StreamSpec{Name: "facts", Partitions: 1}
	ensure(t, b, EnsureOptions{}, spec)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	c.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !asksFor(req, "prod.facts") {
			return nil, nil, false
		}
		if asked++; asked == 3 {
			cancel()
		}
		return noLeader(req.(*kmsg.MetadataRequest)), nil, true
	})
	_, err := b.EnsureStreams(ctx, []StreamSpec{spec}, EnsureOptions{})
	if err == nil || !strings.Contains(err.Error(), "prod.facts") {
		t.Fatal(err)
	}
}

// noLeader answers that the one partition of each topic has no leader.
func noLeader(req *kmsg.MetadataRequest) kmsg.Response {
	res := req.ResponseKind().(*kmsg.MetadataResponse)
	for _, rt := range req.Topics {
		t, p := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
		t.Topic, p.Leader, p.ErrorCode = rt.Topic, -1, kerr.LeaderNotAvailable.Code
		t.Partitions = append(t.Partitions, p)
		res.Topics = append(res.Topics, t)
	}
	return res
}

func TestEnsureStreamsOutlastsAMovingController(t *testing.T) {
	b, c := openFake(t)
	times := 2
	c.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if times--; times < 0 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, rt := range req.(*kmsg.CreateTopicsRequest).Topics {
			st := kmsg.NewCreateTopicsResponseTopic()
			st.Topic, st.ErrorCode = rt.Topic, kerr.NotController.Code
			res.Topics = append(res.Topics, st)
		}
		return res, nil, true
	})
	if report := ensure(t, b, EnsureOptions{}, StreamSpec{Name: "events", Partitions: 1}); len(report.Changes) != 1 {
		t.Errorf("%+v", report)
	}
}

func TestEnsureStreamsChecksItsSpecs(t *testing.T) {
	b, _ := openFake(t)
	for want, specs := range map[string][]StreamSpec{
		"is given twice": {{Name: "a", Partitions: 1}, {Name: "a", Partitions: 1}},
		"0 partitions":   {{Name: "a"}},
		"retention":      {{Name: "a", Partitions: 1, Retention: -1}},
		"Bad":            {{Name: "Bad", Partitions: 1}},
		"is longer than": {{Name: strings.Repeat("a", 50), Partitions: 1}},
	} {
		if _, err := b.EnsureStreams(t.Context(), specs, EnsureOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// EnsureStreams gives up if the same changes stay to be done for long, counted from their first
// appearance. It does not give up while they become fewer.
func TestSteadiness(t *testing.T) {
	const rounds, every = 4 * ensureRounds, ensureSettles / 10
	left := func(streams ...string) actions {
		a := actions{}
		for _, s := range streams {
			a.alter = append(a.alter, alteredStream{name: s, settings: []wantedSetting{{key: "max.message.bytes", value: "2"}}, from: []string{"1"}})
		}
		return a
	}
	synctest.Test(t, func(t *testing.T) {
		var s steadiness
		ended := -1
		for i := range rounds {
			now := left("a", "b")
			if i >= ensureRounds/2 {
				now = left("b")
			}
			if s.isStuck(now) {
				ended = i
				break
			}
			time.Sleep(every)
		}
		if want := ensureRounds/2 + ensureRounds - 1; ended != want {
			t.Errorf("given up in round %d, not %d", ended, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var s steadiness
		for range rounds {
			if s.isStuck(left("a")) {
				t.Fatal("given up at once")
			}
		}
	})
}

// A parked companion follows its source as it is in Kafka, not as in the config.
func TestPlanCompanions(t *testing.T) {
	week := StreamSpec{Name: "messages", Partitions: 8, Retention: 7 * 24 * time.Hour, KeyOrdered: true}
	free := week
	free.KeyOrdered = false
	parked := StreamSpec{Name: "messages.parked", Partitions: 8, Retention: week.Retention, KeyOrdered: true, Builtin: true}
	size := func(bytes string) wantedSetting { return wantedSetting{settingMessageSize, bytes} }

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

// A stream with another name follows the stream in its field Beside.
func TestPlanBeside(t *testing.T) {
	source := StreamSpec{Name: "messages", Partitions: 8, Retention: time.Hour, KeyOrdered: true}
	held := StreamSpec{Name: "scorer.intents.parked", Partitions: 8, Retention: time.Hour, KeyOrdered: true, Builtin: true, Beside: "messages"}
	todo, _, err := plan([]StreamSpec{source, held}, foundStreams{brokers: 3, streams: map[string]foundStream{
		"messages": has(source, 48, 3, wantedSetting{settingMessageSize, "1000000"})}}, EnsureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := printChanges(todo.changes()); got != "scorer.intents.parked created: → 48 partitions, replication 3" {
		t.Errorf("changes %q", got)
	}
	if !slices.Contains(todo.create[0].settings, wantedSetting{settingMessageSize, "1065536"}) {
		t.Errorf("the settings are %v", todo.create[0].settings)
	}
}

// The parked stream of a former trigger is not reported as unknown.
func TestPlanKnowsCompanions(t *testing.T) {
	s := StreamSpec{Name: "messages", Partitions: 8, Retention: time.Hour}
	_, report, err := plan([]StreamSpec{s}, foundStreams{brokers: 3, streams: map[string]foundStream{
		"messages": has(s, 8, 3), "messages.parked": has(s, 8, 3), "other.parked": has(s, 8, 3),
	}}, EnsureOptions{})
	if err != nil || len(report.Unknown) != 1 || report.Unknown[0] != "other.parked" {
		t.Errorf("unknown %q, %v", report.Unknown, err)
	}
}

// has returns a found stream that matches its spec, except for the given values.
func has(s StreamSpec, partitions, replication int, other ...wantedSetting) foundStream {
	f := foundStream{partitions: partitions, replication: replication, settings: map[string]topicSetting{}}
	for _, w := range append(settingsOf(s, replication), other...) {
		f.settings[w.key] = topicSetting{value: w.value, own: true}
	}
	return f
}

func TestPlan(t *testing.T) {
	week := StreamSpec{Name: "messages", Partitions: 8, Retention: 7 * 24 * time.Hour, KeyOrdered: true}
	free := StreamSpec{Name: "progress", Partitions: 8, Retention: time.Hour}
	ever := StreamSpec{Name: "facts", Partitions: 8, KeyOrdered: true, Builtin: true}
	inherited := has(ever, 8, 1)
	inherited.settings = maps.Clone(inherited.settings)
	inherited.settings["cleanup.policy"] = topicSetting{value: "delete"}

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
			found:   map[string]foundStream{"facts": has(ever, 8, 3, wantedSetting{"cleanup.policy", "compact"})},
			changes: "facts cleanup.policy: compact → delete"},
		"a default may change": {spec: ever, brokers: 1, warns: true,
			found:   map[string]foundStream{"facts": inherited},
			changes: "facts cleanup.policy: delete → delete"},
		"retention": {spec: week, brokers: 3,
			found:   map[string]foundStream{"messages": has(week, 8, 3, wantedSetting{settingRetention, "-1"})},
			changes: "messages retention.ms: -1 → 604800000"},
		"stricter than we": {spec: ever, brokers: 5,
			found: map[string]foundStream{"facts": has(ever, 8, 5, wantedSetting{settingMinInsync, "3"})}},
		"more in sync than replicas": {spec: ever, brokers: 1, warns: true,
			found:   map[string]foundStream{"facts": has(ever, 8, 1, wantedSetting{settingMinInsync, "2"})},
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

// The streams from whose order Tidemill computes its state never get more partitions.
func TestPlanKeepsFixedPartitions(t *testing.T) {
	for _, name := range []string{tidemill.StreamFacts, tidemill.StreamDeadLetters, tidemill.StreamCommands, tidemill.StreamClock, tidemill.StreamOutcomes} {
		for _, ordered := range []bool{true, false} {
			spec := StreamSpec{Name: name, Partitions: 8, KeyOrdered: ordered, Builtin: true}
			todo, report, err := plan([]StreamSpec{spec}, foundStreams{brokers: 3, streams: map[string]foundStream{name: has(spec, 2, 3)}}, EnsureOptions{Reorder: true})
			if err != nil || !todo.none() {
				t.Errorf("%s: %v, %v", name, todo.changes(), err)
			}
			checkDrift(t, report.Drift, name+" partitions: want 8 have 2: … a new install")
		}
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

// A broker that is away for a while does not leave its mark on streams that are created meanwhile.
func TestPlanWaitsForABrokerThatIsAway(t *testing.T) {
	old, fresh := StreamSpec{Name: "messages", Partitions: 8}, StreamSpec{Name: "orders", Partitions: 8}
	found := foundStreams{brokers: 2, streams: map[string]foundStream{"messages": has(old, 8, 3)}}
	_, _, err := plan([]StreamSpec{old, fresh}, found, EnsureOptions{})
	if err == nil || !strings.Contains(err.Error(), "create stream orders: streams have 3 replicas, and 2 brokers of Kafka answer: start the others") {
		t.Errorf("a stream is to be created: %v", err)
	}
	todo, report, err := plan([]StreamSpec{old}, found, EnsureOptions{})
	if err != nil || !todo.none() || len(report.Drift) != 0 || len(report.Warnings) != 1 {
		t.Errorf("nothing is to be created: %+v, %+v, %v", todo.changes(), report, err)
	}
}

func TestPlanRefusesMoreReplicasThanBrokers(t *testing.T) {
	if _, _, err := plan(nil, foundStreams{brokers: 2}, EnsureOptions{Replication: 3}); err == nil {
		t.Error("no error")
	}
}
