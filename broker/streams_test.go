package broker

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
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
	spec := StreamSpec{Name: "facts", Partitions: 1} // kafka-go asks for events by itself, whenever it likes
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

// noLeader answers for each topic that its one partition has no leader.
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
