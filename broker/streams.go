package broker

import (
	"context"
	"errors"
	"fmt"
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
	Retention       time.Duration // 0 keeps events for ever
	KeyOrdered      bool          // whether a reader needs the order of each key's events
	Builtin         bool          // whether it belongs to Tidemill and not to the user's file
	MaxMessageBytes int           // 0 leaves the limit to Kafka
	// Beside is the stream whose events wait in this one, each in the partition that it came from.
	// If it is empty, the name decides: <stream>.parked belongs to <stream>.
	Beside string
}

// EnsureOptions limit the changes that EnsureStreams may make.
type EnsureOptions struct {
	Reorder     bool // add partitions even if keys then move to another partition
	DryRun      bool // report the changes and make none
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

// EnsureStreams creates missing streams and alters those that differ. It never shrinks or deletes
// one. It repeats the steps look, plan and apply until nothing is left to do. So several processes
// may run it at once: whichever creates a stream first, all end with the same one. On success every
// partition has a leader.
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
		found, err := persist(ctx, b.findStreams)
		if err != nil {
			return EnsureReport{}, fmt.Errorf("look at the streams: %w", err)
		}
		todo, report, err := plan(specs, found, o)
		if err != nil {
			return EnsureReport{}, err
		}
		changes = remember(changes, todo.changes())
		report.Changes = changes
		if o.DryRun {
			return report, nil
		}
		if todo.none() {
			return report, b.awaitLeaders(ctx, found.servers, specs)
		}
		err = b.applyPlan(ctx, found.adminNode, todo)
		if err != nil && !passing(err) {
			return report, err
		}
		if ended := w.wait(ctx); ended != nil || err == nil && same.still(todo) {
			return report, unsettled(todo, errors.Join(err, ended))
		}
	}
}

const (
	// ensurePatience is the time for which EnsureStreams retries passing errors.
	ensurePatience = 90 * time.Second
	// ensureRounds and ensureSettles are how many rounds, and for how long at least, EnsureStreams
	// repeats a change that does not show in Kafka's answers. A busy broker may return the old
	// state for many seconds.
	ensureRounds  = 12
	ensureSettles = 45 * time.Second
)

// steadiness is since when, and for how many rounds, the same changes were left to do.
type steadiness struct {
	left   string
	since  time.Time
	rounds int
}

// still reports whether these changes were left for too long.
func (s *steadiness) still(todo actions) bool {
	if left := fmt.Sprint(todo.changes()); left != s.left {
		*s = steadiness{left: left, since: time.Now()}
	}
	s.rounds++
	return s.rounds >= ensureRounds && time.Since(s.since) > ensureSettles
}

// unsettled returns the error that names the changes that were left.
func unsettled(todo actions, err error) error {
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

// remember adds the changes of one round to those of earlier rounds. The same change in two rounds
// counts once.
func remember(before, now []Change) []Change {
	for _, c := range now {
		same := func(o Change) bool { return o.Stream == c.Stream && o.What == c.What }
		if !slices.ContainsFunc(before, same) {
			before = append(before, c)
		}
	}
	return before
}

// adminTimeoutMs is the time that Kafka has for a creation before it answers that the creation goes
// on in the background. It is less than our timeout for the answer.
const adminTimeoutMs = 5_000

// applyPlan makes the planned changes and decides nothing. A step that another process took first
// is not an error. Every step is tried, even if the one before has failed. A permanent error is
// returned before a passing one.
func (b *Broker) applyPlan(ctx context.Context, node int32, a actions) error {
	var gravest error
	for _, err := range []error{
		b.createStreams(ctx, node, a.create),
		b.alterStreams(ctx, node, a.alter),
		b.growStreams(ctx, node, a.grow),
	} {
		gravest = graver(gravest, err)
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
	res, err := ask[*createtopics.Response](ctx, b, node, req)
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
	return worst(failed)
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
	res, err := ask[*incrementalalterconfigs.Response](ctx, b, node, req)
	if err != nil {
		return err
	}
	var failed []error
	for _, r := range res.Responses {
		if err := codeError(r.ErrorCode, r.ErrorMessage); err != nil {
			failed = append(failed, fmt.Errorf("alter topic %s: %w%s", r.ResourceName, err, aclHint(err)))
		}
	}
	return worst(failed)
}

func (b *Broker) growStreams(ctx context.Context, node int32, all []grownStream) error {
	if len(all) == 0 {
		return nil
	}
	req := &createpartitions.Request{TimeoutMs: adminTimeoutMs}
	for _, s := range all {
		req.Topics = append(req.Topics, createpartitions.RequestTopic{Name: b.names.Topic(s.name), Count: int32(s.to)})
	}
	res, err := ask[*createpartitions.Response](ctx, b, node, req)
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
	return worst(failed)
}

// worst joins the permanent errors or, if there are none, the passing ones.
func worst(failed []error) error {
	if lasting := slices.DeleteFunc(slices.Clone(failed), passing); len(lasting) > 0 {
		return errors.Join(lasting...)
	}
	return errors.Join(failed...)
}

// awaitLeaders waits until every server knows a leader for every partition of the streams. Until
// then a publisher may get errors from some servers. A server that cannot be reached is skipped,
// because publishers cannot reach it either.
func (b *Broker) awaitLeaders(ctx context.Context, servers []wire.BrokerNode, specs []StreamSpec) error {
	if len(specs) == 0 {
		return nil
	}
	topics := make([]string, len(specs))
	for i, s := range specs {
		topics[i] = b.names.Topic(s.Name)
	}
	waiting := topics
	_, err := persist(ctx, func(ctx context.Context) (any, error) {
		md, err := b.metadata(ctx, topics...)
		if err != nil {
			return nil, err
		}
		waiting = leaderless(md)
		for _, s := range servers {
			switch md, err := b.metadataFrom(ctx, s.ID, topics...); {
			case err == nil:
				waiting = append(waiting, leaderless(md)...)
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

// leaderless returns the topics that have a partition without a leader, or an error.
func leaderless(md *wire.Metadata) []string {
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

// companion adapts the spec of a .parked stream to its source in Kafka, which may differ from the
// config. A parked event is written to the same partition number as in the source, so the companion
// needs at least as many partitions. It is a little larger than the event, so the companion's size
// limit must be larger too. Both values may exceed what is needed, because nothing shrinks.
//
// If this round creates or grows the source, the next round sees the result.
func companion(s StreamSpec, found foundStreams) StreamSpec {
	of, parked := s.Beside, true
	if of == "" {
		of, parked = tidemill.CutParked(s.Name)
	}
	source, there := found.streams[of]
	if !parked || !there {
		return s
	}
	have := found.streams[s.Name]
	s.KeyOrdered = false // keys do not choose the partition there
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
