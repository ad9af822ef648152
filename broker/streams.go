package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createpartitions"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/incrementalalterconfigs"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// StreamSpec is a stream as the config specifies it.
type StreamSpec struct {
	Name            string
	Partitions      int
	Retention       time.Duration // 0: events are kept for ever
	NewestOnly      bool          // whether Kafka may delete an event once a newer one has its key
	KeyOrdered      bool          // whether a reader needs the order of each key's events
	Builtin         bool          // whether Tidemill defines the stream, and not the user's file
	MaxMessageBytes int           // 0: Kafka's limit applies
	// Beside is the stream that this one keeps waiting events for. Each event waits in the partition
	// with the number of the one that it came from. If Beside is empty, the name decides:
	// <stream>.parked belongs to <stream>.
	Beside string
}

// EnsureOptions limit the changes that EnsureStreams may make.
type EnsureOptions struct {
	Reorder     bool // whether to add partitions even if keys then move to another partition; streams of tidemill.FixedPartitions never get more
	DryRun      bool // whether to report the changes without making them
	Replication int  // 0 means three if there are three brokers, else one
}

// EnsureReport lists the changes that EnsureStreams made, and the differences that it left.
type EnsureReport struct {
	Changes  []Change
	Drift    []Drift
	Unknown  []string // streams of this install that the config does not name
	Warnings []string
}

// Change is one change that EnsureStreams made, or would make in a dry run.
type Change struct {
	Stream, What, From, To string
}

// Drift is one difference that EnsureStreams leaves.
type Drift struct {
	Stream, What, Want, Have string
	Why, Next                string
}

// EnsureStreams creates missing streams and alters those that differ. It never shrinks or deletes a
// stream. It repeats three steps until nothing is left to do: find the streams, plan the changes,
// apply them. So several processes may run EnsureStreams at once, and all get the same streams. On
// success every partition has a leader.
func (b *Broker) EnsureStreams(ctx context.Context, specs []StreamSpec, o EnsureOptions) (EnsureReport, error) {
	if err := checkSpecs(specs); err != nil {
		return EnsureReport{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, ensurePatience)
	defer cancel()
	var (
		changes []Change
		w       backoff
		same    steadiness
	)
	for {
		found, err := retryUntil(ctx, b.findStreams)
		if err != nil {
			return EnsureReport{}, fmt.Errorf("look at the streams: %w", err)
		}
		todo, report, err := plan(specs, found, o)
		if err != nil {
			return EnsureReport{}, err
		}
		changes = mergeChanges(changes, todo.changes())
		report.Changes = changes
		if o.DryRun {
			return report, nil
		}
		if todo.none() {
			return report, b.awaitLeaders(ctx, found.servers, specs)
		}
		err = b.applyPlan(ctx, found.adminNode, todo)
		if err != nil && !isTransient(err) {
			return report, err
		}
		if ended := w.wait(ctx); ended != nil || err == nil && same.isStuck(todo) {
			return report, unsettledError(todo, errors.Join(err, ended))
		}
	}
}

const (
	// ensurePatience is the time for which EnsureStreams retries passing errors.
	ensurePatience = 90 * time.Second
	// EnsureStreams gives up after ensureRounds rounds and at least ensureSettles, if a change does
	// not show in Kafka's answers. A busy broker may return the old state for many seconds.
	ensureRounds  = 12
	ensureSettles = 45 * time.Second
)

// steadiness is the time since which, and the number of rounds in which, the same changes were left
// to do.
type steadiness struct {
	left   string
	since  time.Time
	rounds int
}

// isStuck reports whether the same changes were left for too long.
func (s *steadiness) isStuck(todo actions) bool {
	if left := fmt.Sprint(todo.changes()); left != s.left {
		*s = steadiness{left: left, since: time.Now()}
	}
	s.rounds++
	return s.rounds >= ensureRounds && time.Since(s.since) > ensureSettles
}

// unsettledError returns the error that names the changes that were left.
func unsettledError(todo actions, err error) error {
	if err != nil {
		return fmt.Errorf("ensure streams: %w: is Kafka restarting? Run again", err)
	}
	return fmt.Errorf("ensure streams: these do not stay as they are set: %v: does another process alter them, or does Kafka have a policy against it?", todo.changes())
}

func checkSpecs(specs []StreamSpec) error {
	seen := make(map[string]bool, len(specs))
	for _, s := range specs {
		if err := tidemill.CheckStream(s.Name); err != nil {
			return err
		}
		switch {
		case seen[s.Name]:
			return fmt.Errorf("stream %q is given twice: drop one", s.Name)
		case s.Partitions < 1:
			return fmt.Errorf("stream %q has %d partitions: give it one or more", s.Name, s.Partitions)
		case s.Retention < 0 || s.Retention > 0 && s.Retention < time.Millisecond:
			return fmt.Errorf("stream %q has a retention of %v: give it a millisecond or more, or 0 to keep events for ever", s.Name, s.Retention)
		case s.MaxMessageBytes < 0:
			return fmt.Errorf("stream %q has a largest message of %d bytes: give a positive number, or 0", s.Name, s.MaxMessageBytes)
		}
		seen[s.Name] = true
	}
	return nil
}

// mergeChanges adds the changes of one round to those of earlier rounds. The same change in two
// rounds counts once.
func mergeChanges(before, now []Change) []Change {
	for _, c := range now {
		same := func(o Change) bool { return o.Stream == c.Stream && o.What == c.What }
		if !slices.ContainsFunc(before, same) {
			before = append(before, c)
		}
	}
	return before
}

// adminTimeoutMs is the time after which Kafka answers that a creation continues in the background.
// This time is less than our timeout for the answer.
const adminTimeoutMs = 5_000

// applyPlan makes the planned changes and no others. A change that another process has made first
// is not an error. Every change is tried, even if the previous change has failed. A permanent error
// is returned before a passing one.
func (b *Broker) applyPlan(ctx context.Context, node int32, a actions) error {
	var gravest error
	for _, err := range []error{
		b.createStreams(ctx, node, a.create),
		b.alterStreams(ctx, node, a.alter),
		b.growStreams(ctx, node, a.grow),
	} {
		gravest = graverError(gravest, err)
	}
	return gravest
}

func (b *Broker) createStreams(ctx context.Context, node int32, all []newStream) error {
	if len(all) == 0 {
		return nil
	}
	req := &createtopics.Request{TimeoutMs: adminTimeoutMs}
	for _, s := range all {
		t := createtopics.RequestTopic{Name: b.names.Topic(s.name), NumPartitions: int32(s.partitions), ReplicationFactor: int16(s.replication)}
		for _, w := range s.settings {
			t.Configs = append(t.Configs, createtopics.RequestConfig{Name: w.key, Value: w.value})
		}
		req.Topics = append(req.Topics, t)
	}
	res, err := requestServer[*createtopics.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, t := range res.Topics {
		err := codeError(t.ErrorCode, t.ErrorMessage)
		if err != nil && !isCode(err, kafka.TopicAlreadyExists) {
			failed = append(failed, fmt.Errorf("create topic %s: %w%s", t.Name, err, aclHint(err)))
		}
	}
	return joinErrors(failed)
}

func (b *Broker) alterStreams(ctx context.Context, node int32, all []alteredStream) error {
	if len(all) == 0 {
		return nil
	}
	req := new(incrementalalterconfigs.Request)
	for _, s := range all {
		r := incrementalalterconfigs.RequestResource{ResourceType: resourceTopic, ResourceName: b.names.Topic(s.name)}
		for _, w := range s.settings {
			r.Configs = append(r.Configs, incrementalalterconfigs.RequestConfig{Name: w.key, Value: w.value})
		}
		req.Resources = append(req.Resources, r)
	}
	res, err := requestServer[*incrementalalterconfigs.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range res.Responses {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			failed = append(failed, fmt.Errorf("alter topic %s: %w%s", r.ResourceName, err, aclHint(err)))
		}
	}
	return joinErrors(failed)
}

func (b *Broker) growStreams(ctx context.Context, node int32, all []grownStream) error {
	if len(all) == 0 {
		return nil
	}
	req := &createpartitions.Request{TimeoutMs: adminTimeoutMs}
	for _, s := range all {
		req.Topics = append(req.Topics, createpartitions.RequestTopic{Name: b.names.Topic(s.name), Count: int32(s.to)})
	}
	res, err := requestServer[*createpartitions.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range res.Results {
		err := codeError(r.ErrorCode, r.ErrorMessage)
		// A count that is too small means that another process has added the partitions first.
		if err != nil && !isCode(err, kafka.InvalidPartitionNumber) {
			failed = append(failed, fmt.Errorf("add partitions to topic %s: %w%s", r.Name, err, aclHint(err)))
		}
	}
	return joinErrors(failed)
}

// joinErrors joins the permanent errors, or the passing errors if no error is permanent.
func joinErrors(failed []error) error {
	if lasting := slices.DeleteFunc(slices.Clone(failed), isTransient); len(lasting) > 0 {
		return errors.Join(lasting...)
	}
	return errors.Join(failed...)
}

// awaitLeaders waits until every server knows a leader for every partition of the streams. Until
// then a publisher may get errors from some servers. A server that cannot be reached is skipped,
// because publishers cannot reach this server either.
func (b *Broker) awaitLeaders(ctx context.Context, servers []wire.BrokerNode, specs []StreamSpec) error {
	if len(specs) == 0 {
		return nil
	}
	topics := make([]string, len(specs))
	for i, s := range specs {
		topics[i] = b.names.Topic(s.Name)
	}
	waiting := topics
	_, err := retryUntil(ctx, func(ctx context.Context) (any, error) {
		md, err := b.metadata(ctx, topics...)
		if err != nil {
			return nil, err
		}
		waiting = leaderlessTopics(md)
		for _, s := range servers {
			switch md, err := b.metadataFrom(ctx, s.ID, topics...); {
			case err == nil:
				waiting = append(waiting, leaderlessTopics(md)...)
			case isCode(err, kafka.BrokerNotAvailable): // kafka-go does not know the server yet
				return nil, err
			}
		}
		if len(waiting) > 0 {
			return nil, kafka.LeaderNotAvailable
		}
		return nil, nil
	})
	if err != nil {
		slices.Sort(waiting)
		return fmt.Errorf("wait for leaders of %s: %w: are all brokers up?", strings.Join(slices.Compact(waiting), ", "), err)
	}
	return nil
}

// leaderlessTopics returns the topics that have a partition without a leader, or an error.
func leaderlessTopics(md *wire.Metadata) []string {
	var all []string
	for _, t := range md.Topics {
		notLed := func(p wire.PartitionMetadata) bool {
			return p.Leader < 0 || p.Error == int16(kafka.LeaderNotAvailable)
		}
		if t.Error != 0 || len(t.Partitions) == 0 || slices.ContainsFunc(t.Partitions, notLed) {
			all = append(all, t.Name)
		}
	}
	return all
}

func isCode(err error, code kafka.Error) bool { return errors.Is(err, code) }

// parkedRoom is the number of bytes that parking may add to an event: our attributes, and the
// beginning of the last answer.
const parkedRoom = 64 << 10

// parkedSpec adapts the spec of a .parked stream to its source in Kafka, which may differ from the
// config. A parked event is written to the same partition number as in the source, so the companion
// needs at least as many partitions. The parked event is a little larger than the original, so the
// companion's size limit must be larger too. The number of partitions and the size limit may exceed
// the needed values, because neither is ever reduced.
//
// If this round creates or grows the source, the next round sees the result.
func parkedSpec(s StreamSpec, found foundStreams) StreamSpec {
	of, parked := s.Beside, true
	if of == "" {
		of, parked = tidemill.CutParked(s.Name)
	}
	source, there := found.streams[of]
	if !parked || !there {
		return s
	}
	have := found.streams[s.Name]
	s.KeyOrdered = false // keys do not choose the partition of a parked event
	s.Partitions = max(source.partitions, have.partitions)
	s.MaxMessageBytes = max(s.MaxMessageBytes, messageSize(source)+parkedRoom)
	if have.settings[settingMessageSize].own {
		s.MaxMessageBytes = max(s.MaxMessageBytes, messageSize(have))
	}
	return s
}

// messageSize returns the largest batch that a stream takes, or 0 if Kafka does not say.
func messageSize(s foundStream) int {
	n, err := strconv.Atoi(s.settings[settingMessageSize].value)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, math.MaxInt32-parkedRoom) // Kafka's setting is a 32-bit number
}

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
	settings    map[string]topicSetting
}

// topicSetting is a topic's effective config value. If own is true, the topic itself sets the
// value. Otherwise the value is a broker default, which may change.
type topicSetting struct {
	value string
	own   bool
}

// wantedSetting is a config value that a topic should have.
type wantedSetting struct{ key, value string }

// actions are the changes from the found state to the specified state.
type actions struct {
	create []newStream
	alter  []alteredStream
	grow   []grownStream
}

type newStream struct {
	name        string
	partitions  int
	replication int
	settings    []wantedSetting
}

type alteredStream struct {
	name     string
	settings []wantedSetting
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

// plan decides on the changes and does not make them. Its report has all fields except the changes.
func plan(specs []StreamSpec, found foundStreams, o EnsureOptions) (actions, EnsureReport, error) {
	replication, warnings, err := chooseReplication(found, o.Replication)
	if err != nil {
		return actions{}, EnsureReport{}, err
	}
	todo, report := actions{}, EnsureReport{Warnings: warnings}
	unknown := maps.Clone(found.streams)
	for _, s := range specs {
		s = parkedSpec(s, found)
		delete(unknown, s.Name)
		delete(unknown, tidemill.Parked(s.Name)) // the parked stream stays, even if no trigger reads the stream now
		have, ok := found.streams[s.Name]
		if !ok {
			todo.create = append(todo.create, newStream{s.Name, s.Partitions, replication, settingsOf(s, replication)})
			continue
		}
		if a := alterations(s, have); len(a.settings) > 0 {
			todo.alter = append(todo.alter, a)
		}
		if s.Partitions > have.partitions && mayGrow(s, o) {
			todo.grow = append(todo.grow, grownStream{s.Name, have.partitions, s.Partitions})
		}
		report.Drift = append(report.Drift, drift(s, have, replication, o)...)
	}
	report.Unknown = slices.Sorted(maps.Keys(unknown))
	if away := found.brokersAway(); away != "" && o.Replication == 0 && len(todo.create) > 0 {
		return actions{}, report, fmt.Errorf("create stream %s: %s; with fewer replicas it could lose acknowledged events", todo.create[0].name, away)
	}
	return todo, report, nil
}

// brokersAway says that some streams have more replicas than Kafka has brokers now; empty if none has. So brokers that
// do not answer belong to this Kafka.
func (f *foundStreams) brokersAway() string {
	most := 0
	for _, s := range f.streams {
		most = max(most, s.replication)
	}
	if most <= f.brokers {
		return ""
	}
	return fmt.Sprintf("streams have %d replicas, and %d brokers of Kafka answer: start the others", most, f.brokers)
}

// mayGrow reports whether a stream may get more partitions.
func mayGrow(s StreamSpec, o EnsureOptions) bool {
	return !tidemill.FixedPartitions(s.Name) && (!s.KeyOrdered || o.Reorder)
}

// chooseReplication returns three if there are three brokers. With three copies, two copies survive
// the loss of any broker, and an acknowledged event is on at least two disks.
func chooseReplication(found foundStreams, asked int) (int, []string, error) {
	n, brokers := asked, found.brokers
	if away := found.brokersAway(); away != "" && n == 0 {
		return 1, []string{away + "; until then no stream can be created"}, nil
	}
	if n == 0 {
		n = 1
		if brokers >= 3 {
			n = 3
		}
	}
	if n < 0 || n > brokers {
		return 0, nil, fmt.Errorf("ensure streams: replication is %d, but Kafka has %d brokers: set %d or less, or add brokers", n, brokers, brokers)
	}
	if n >= 3 {
		return n, nil, nil
	}
	return n, []string{fmt.Sprintf("new streams have replication %d: losing a broker's disk can lose acknowledged events; run three brokers or more, with replication 3", n)}, nil
}

const (
	settingCleanup     = "cleanup.policy"
	settingRetention   = "retention.ms"
	settingSegment     = "segment.ms"
	settingMinInsync   = "min.insync.replicas"
	settingMessageSize = "max.message.bytes"
)

// settingsOf returns the configs that the promises of a stream need. They are set on the topic even
// if a broker default agrees, because the default may change. Compaction would drop events of one
// key, which only NewestOnly allows, retention.bytes would drop events that never expire, and an unclean election would drop
// acknowledged events.
func settingsOf(s StreamSpec, replication int) []wantedSetting {
	all := []wantedSetting{
		{settingCleanup, "delete"},
		{settingRetention, retentionValue(s.Retention)},
		{"retention.bytes", "-1"},
		{"unclean.leader.election.enable", "false"},
		{settingMinInsync, strconv.Itoa(minInsync(replication))},
	}
	if s.NewestOnly {
		all[0].value = "compact"
		all = append(all, wantedSetting{settingSegment, strconv.FormatInt(compactedSegment.Milliseconds(), 10)})
	}
	if s.MaxMessageBytes > 0 {
		all = append(all, wantedSetting{settingMessageSize, strconv.Itoa(s.MaxMessageBytes)})
	}
	return all
}

// compactedSegment is the time after which Kafka may compact an event.
const compactedSegment = 24 * time.Hour

func retentionValue(d time.Duration) string {
	if d == 0 {
		return "-1"
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// minInsync returns two only for three replicas. If both of two replicas had to be in sync, one
// lost broker would stop every publisher.
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
		if is.own && is.value == w.value || w.key == settingMinInsync && isStricter(is, w.value, have.replication) {
			continue
		}
		a.settings = append(a.settings, w)
		a.from = append(a.from, is.value)
	}
	return a
}

// isStricter reports whether the topic requires more in-sync replicas than we do and has enough
// replicas for that. Then we do not change the topic's value.
func isStricter(is topicSetting, want string, replication int) bool {
	has, err := strconv.Atoi(is.value)
	least, _ := strconv.Atoi(want)
	return err == nil && is.own && has > least && has <= replication
}

// drift returns the differences that plan does not change.
func drift(s StreamSpec, have foundStream, replication int, o EnsureOptions) []Drift {
	var all []Drift
	partitions := Drift{Stream: s.Name, What: "partitions", Want: strconv.Itoa(s.Partitions), Have: strconv.Itoa(have.partitions)}
	switch {
	case s.Partitions < have.partitions:
		partitions.Why = "Kafka cannot take partitions away without losing their events"
		partitions.Next = accept(s, have.partitions)
		all = append(all, partitions)
	case s.Partitions > have.partitions && tidemill.FixedPartitions(s.Name):
		partitions.Why = "Tidemill computes its state from the order of this stream; with more partitions keys move, and their order is lost"
		partitions.Next = fmt.Sprintf("set partitions: %d for this stream in the config, or leave it; only a new install, with another name, can begin with more", have.partitions)
		all = append(all, partitions)
	case s.Partitions > have.partitions && !mayGrow(s, o):
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
	if tidemill.FixedPartitions(s.Name) {
		return "leave it if the stream was created so; if it has grown since, docs/runbooks/ledger-stopped.md says what to do"
	}
	if s.Builtin {
		return "leave it: this stream is Tidemill's own, and works with any number"
	}
	return fmt.Sprintf("set partitions: %d for this stream in the config", partitions)
}
