package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// foundStreams is the state of this install's streams in Kafka.
type foundStreams struct {
	brokers   int
	servers   []wire.BrokerNode
	adminNode int32 // server to ask for changes
	streams   map[string]foundStream
}

type foundStream struct {
	partitions  int
	replication int
	settings    map[string]setting
}

// setting is a topic's effective config value. own means that the topic itself sets it; otherwise
// it comes from a broker default, which may change.
type setting struct {
	value string
	own   bool
}

// wanted is a config value that a topic should have.
type wanted struct{ key, value string }

// actions are the steps from the found state to the specified one.
type actions struct {
	create []newStream
	alter  []alteredStream
	grow   []grownStream
}

type newStream struct {
	name        string
	partitions  int
	replication int
	settings    []wanted
}

type alteredStream struct {
	name     string
	settings []wanted
	from     []string // former values, in the order of settings
}

type grownStream struct {
	name     string
	from, to int
}

func (a actions) none() bool { return len(a.create)+len(a.alter)+len(a.grow) == 0 }

func (a actions) changes() []Change {
	var all []Change
	for _, c := range a.create {
		to := fmt.Sprintf("%d partitions, replication %d", c.partitions, c.replication)
		all = append(all, Change{Stream: c.name, What: "created", To: to})
	}
	for _, c := range a.alter {
		for i, s := range c.settings {
			all = append(all, Change{Stream: c.name, What: s.key, From: c.from[i], To: s.value})
		}
	}
	for _, c := range a.grow {
		all = append(all, Change{Stream: c.name, What: "partitions", From: strconv.Itoa(c.from), To: strconv.Itoa(c.to)})
	}
	return all
}

// plan decides on the changes and makes none. Its report has everything but the changes.
func plan(specs []StreamSpec, found foundStreams, o EnsureOptions) (actions, EnsureReport, error) {
	replication, warnings, err := chooseReplication(found.brokers, o.Replication)
	if err != nil {
		return actions{}, EnsureReport{}, err
	}
	todo, report := actions{}, EnsureReport{Warnings: warnings}
	unknown := maps.Clone(found.streams)
	for _, s := range specs {
		s = companion(s, found)
		delete(unknown, s.Name)
		delete(unknown, tidemill.Parked(s.Name)) // its parked events stay, even if no trigger reads the stream now
		have, ok := found.streams[s.Name]
		if !ok {
			todo.create = append(todo.create, newStream{s.Name, s.Partitions, replication, settingsOf(s, replication)})
			continue
		}
		if a := alterations(s, have); len(a.settings) > 0 {
			todo.alter = append(todo.alter, a)
		}
		if s.Partitions > have.partitions && (!s.KeyOrdered || o.Reorder) {
			todo.grow = append(todo.grow, grownStream{s.Name, have.partitions, s.Partitions})
		}
		report.Drift = append(report.Drift, drift(s, have, replication, o)...)
	}
	report.Unknown = slices.Sorted(maps.Keys(unknown))
	return todo, report, nil
}

// chooseReplication returns three if there are three brokers. Then two copies survive the loss of
// any broker, and an acknowledged event is on at least two disks.
func chooseReplication(brokers, asked int) (int, []string, error) {
	n := asked
	if n == 0 {
		n = 1
		if brokers >= 3 {
			n = 3
		}
	}
	if n < 0 || n > brokers {
		return 0, nil, fmt.Errorf("ensure streams: replication %d is asked for, but Kafka has %d brokers: ask for %d or fewer, or add brokers", n, brokers, brokers)
	}
	if n >= 3 {
		return n, nil, nil
	}
	return n, []string{fmt.Sprintf("new streams have replication %d: losing a broker's disk can lose acknowledged events; run three brokers or more, with replication 3", n)}, nil
}

const (
	settingRetention   = "retention.ms"
	settingMinInsync   = "min.insync.replicas"
	settingMessageSize = "max.message.bytes"
)

// settingsOf returns the configs that the promises of a stream need. They are set on the topic even
// if a broker default agrees, because the default may change. Compaction would drop events of one
// key, retention.bytes would drop events that never expire, and an unclean election would drop
// acknowledged events.
func settingsOf(s StreamSpec, replication int) []wanted {
	all := []wanted{
		{"cleanup.policy", "delete"},
		{settingRetention, retentionValue(s.Retention)},
		{"retention.bytes", "-1"},
		{"unclean.leader.election.enable", "false"},
		{settingMinInsync, strconv.Itoa(minInsync(replication))},
	}
	if s.MaxMessageBytes > 0 {
		all = append(all, wanted{settingMessageSize, strconv.Itoa(s.MaxMessageBytes)})
	}
	return all
}

func retentionValue(d time.Duration) string {
	if d == 0 {
		return "-1"
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// minInsync returns two only for three replicas. With two replicas, one lost broker would stop
// every publisher.
func minInsync(replication int) int {
	if replication >= 3 {
		return 2
	}
	return 1
}

func alterations(s StreamSpec, have foundStream) alteredStream {
	a := alteredStream{name: s.Name}
	for _, w := range settingsOf(s, have.replication) {
		is := have.settings[w.key]
		if is.own && is.value == w.value || w.key == settingMinInsync && stricter(is, w.value, have.replication) {
			continue
		}
		a.settings = append(a.settings, w)
		a.from = append(a.from, is.value)
	}
	return a
}

// stricter reports whether the topic asks for more in-sync replicas than we do and has that many.
// Then we leave that choice alone.
func stricter(is setting, want string, replication int) bool {
	has, err := strconv.Atoi(is.value)
	least, _ := strconv.Atoi(want)
	return err == nil && is.own && has > least && has <= replication
}

// drift returns the differences that plan leaves.
func drift(s StreamSpec, have foundStream, replication int, o EnsureOptions) []Drift {
	var all []Drift
	partitions := Drift{Stream: s.Name, What: "partitions", Want: strconv.Itoa(s.Partitions), Have: strconv.Itoa(have.partitions)}
	switch {
	case s.Partitions < have.partitions:
		partitions.Why = "Kafka cannot take partitions away without losing their events"
		partitions.Next = accept(s, have.partitions)
		all = append(all, partitions)
	case s.Partitions > have.partitions && s.KeyOrdered && !o.Reorder:
		partitions.Why = "with more partitions most keys move to another one, and a key's events before and after may be handled out of order"
		partitions.Next = "when its readers have no lag, run again with --reorder; or " + accept(s, have.partitions)
		all = append(all, partitions)
	}
	if have.replication < replication {
		all = append(all, Drift{Stream: s.Name, What: "replication", Want: strconv.Itoa(replication), Have: strconv.Itoa(have.replication),
			Why:  "moving replicas loads every broker, so its time is yours to choose",
			Next: "raise it with kafka-reassign-partitions.sh, then run again"})
	}
	return all
}

func accept(s StreamSpec, partitions int) string {
	if s.Builtin {
		return "leave it: this stream is Tidemill's own, and works with any number"
	}
	return fmt.Sprintf("set partitions: %d for this stream in the config", partitions)
}

// resourceTopic is the resource type of a topic in config requests.
const resourceTopic = 2

// sourceTopic marks a config value that the topic itself sets.
const sourceTopic = 1

// findStreams reads the state of this install's streams from Kafka.
func (b *Broker) findStreams(ctx context.Context) (foundStreams, error) {
	md, err := b.metadata(ctx)
	if err != nil {
		return foundStreams{}, err
	}
	found := foundStreams{brokers: len(md.Brokers), servers: md.Brokers, adminNode: adminNode(md), streams: map[string]foundStream{}}
	topics, err := b.ours(md)
	if err != nil {
		return foundStreams{}, err
	}
	settings, err := b.topicSettings(ctx, adminNode(md), topics)
	if err != nil {
		return foundStreams{}, err
	}
	for _, t := range topics {
		name, _ := b.names.Stream(t.Name)
		f := foundStream{partitions: len(t.Partitions), settings: settings[t.Name]}
		if len(t.Partitions) > 0 {
			f.replication = len(t.Partitions[0].Replicas)
		}
		found.streams[name] = f
	}
	return found, nil
}

// adminNode returns the server to ask for changes and for their result. It is the controller if
// Kafka names it; with ZooKeeper, only the controller can make changes.
func adminNode(md *wire.Metadata) int32 {
	for _, broker := range md.Brokers {
		if broker.ID == md.Controller {
			return broker.ID
		}
	}
	return anyNode
}

// ours returns the topics with this install's prefix.
func (b *Broker) ours(md *wire.Metadata) ([]wire.TopicMetadata, error) {
	var all []wire.TopicMetadata
	for _, t := range md.Topics {
		if _, ok := b.names.Stream(t.Name); !ok || t.Internal {
			continue
		}
		if err := codeError(t.Error, ""); err != nil {
			return nil, fmt.Errorf("look at topic %s: %w", t.Name, err)
		}
		all = append(all, t)
	}
	return all, nil
}

// topicSettings returns the configs that we set, by topic and key.
func (b *Broker) topicSettings(ctx context.Context, node int32, topics []wire.TopicMetadata) (map[string]map[string]setting, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	var keys []string
	for _, w := range settingsOf(StreamSpec{MaxMessageBytes: 1}, 1) {
		keys = append(keys, w.key)
	}
	req := new(describeconfigs.Request)
	for _, t := range topics {
		req.Resources = append(req.Resources, describeconfigs.RequestResource{
			ResourceType: resourceTopic, ResourceName: t.Name, ConfigNames: keys})
	}
	res, err := ask[*describeconfigs.Response](ctx, b, node, req)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]setting, len(topics))
	for _, r := range res.Resources {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			return nil, fmt.Errorf("read the config of topic %s: %w%s", r.ResourceName, err, aclHint(err))
		}
		entries := make(map[string]setting, len(r.ConfigEntries))
		for _, e := range r.ConfigEntries {
			entries[e.ConfigName] = setting{value: e.ConfigValue, own: e.ConfigSource == sourceTopic}
		}
		all[r.ResourceName] = entries
	}
	return all, nil
}

// aclHint returns the next step if Kafka's access lists refuse us.
func aclHint(err error) string {
	for _, code := range []kafka.Error{kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.GroupAuthorizationFailed} {
		if isCode(err, code) {
			return ": let our user describe, create and alter the topics with our prefix, and read its groups"
		}
	}
	return ""
}
