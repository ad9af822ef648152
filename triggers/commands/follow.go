// Package commands reads and writes the stream commands: what people have asked for,
// such as pauses and replays.
package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// Follower has the present state of all commands. Every process that obeys commands has a follower.
type Follower struct {
	b      *broker.Broker
	reader *follow.Follower
	fold   State      // used by the reading goroutine only
	ends   *forgotten // nil if the caller asks about no events of keys
	now    atomic.Pointer[State]

	mu      sync.Mutex
	changed chan struct{}
}

// Follow reads the commands and returns once it has reached their present end. The
// caller closes the follower.
func Follow(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	return newFollower(b, false).open(ctx, logger)
}

// FollowKeys is Follow for a process that also asks [Follower.Passed]. It keeps some bytes for each
// key that was ever forgotten.
func FollowKeys(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Follower, error) {
	return newFollower(b, true).open(ctx, logger)
}

func newFollower(b *broker.Broker, keys bool) *Follower {
	f := &Follower{b: b, changed: make(chan struct{})}
	if keys {
		f.ends = newForgotten(f.command, func(ctx context.Context, stream string) (string, error) { return b.TopicID(ctx, stream) })
	}
	f.now.Store(&State{})
	return f
}

func (f *Follower) open(ctx context.Context, logger *slog.Logger) (*Follower, error) {
	r, err := follow.Open(ctx, f.b, follow.Options{Stream: tidemill.StreamCommands, Logger: logger, Take: f.take})
	if err != nil {
		return nil, err
	}
	f.reader = r
	return f, nil
}

// Now returns the present state, which never changes.
func (f *Follower) Now() *State { return f.now.Load() }

// Changed returns a channel that is closed when Now returns a newer state than at the
// call of Changed: call it before Now.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// Close stops following and waits until it has ended.
func (f *Follower) Close(ctx context.Context) error { return f.reader.Close(ctx) }

func (f *Follower) take(d *broker.Delivery) {
	for i := range d.Events {
		e := &d.Events[i]
		if e.Err != nil {
			continue
		}
		c := read(e)
		f.fold.Apply(c)
		if f.ends != nil {
			f.ends.add(&c)
		}
	}
	f.now.Store(f.fold.Clone())
	f.mu.Lock()
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
}

// Lives knows the streams that its reader reads. [broker.Consumer] is one.
type Lives interface {
	// Topic returns the id that a stream's topic had at an offset; empty if it is not known.
	Topic(at broker.Position) string
}

// TopicID is the id of the topic of all events of a stream. It implements [Lives].
type TopicID string

// Topic returns the id.
func (t TopicID) Topic(broker.Position) string { return string(t) }

// Passed reports whether an event of a key is before the key's end, so that it is not delivered any
// more. Events about the end itself are delivered. The error is one of the log of commands, or of Kafka.
func (f *Follower) Passed(ctx context.Context, key, typ string, at broker.Position, lives Lives) (bool, error) {
	if tidemill.Outlives(typ) {
		return false, nil
	}
	return f.ends.passed(ctx, key, at, lives)
}

// EventPassed is Passed for an event, which its subject or its partitionkey may end.
func (f *Follower) EventPassed(ctx context.Context, v *broker.View, at broker.Position, lives Lives) (passed bool, err error) {
	passed, err = f.Passed(ctx, v.Subject, v.Type, at, lives)
	if !passed && err == nil && string(v.Key) != v.Subject { // the record's key is the partitionkey, if there is one
		passed, err = f.Passed(ctx, string(v.Key), v.Type, at, lives)
	}
	return passed, err
}

// read copies the parts of an event that the fold needs.
func read(e *broker.Incoming) Command {
	v := e.Clone()
	by, _ := v.Attribute(tidemill.AttrAuthID)
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		at = e.Time
	}
	return Command{Offset: e.Offset, ID: v.ID, Type: v.Type, Subject: v.Subject, By: by, At: at.UTC(), Data: v.Data}
}

// Letters returns the dead letters that a command asks to replay. It reads them from
// the command itself.
func (f *Follower) Letters(ctx context.Context, of LetterReplay) ([]tidemill.LetterRef, error) {
	var all []tidemill.LetterRef
	err := f.readAt(ctx, of.Offset, func(e *broker.Incoming) (err error) { all, err = readLetters(&e.View); return err })
	if err != nil {
		return nil, fmt.Errorf("read command %s: %w", of.ID, err)
	}
	return all, nil
}

// readAt calls fn with the command at an offset.
func (f *Follower) readAt(ctx context.Context, offset int64, fn func(*broker.Incoming) error) error {
	failed := fmt.Errorf("offset %d of stream %s no longer has a command", offset, tidemill.StreamCommands)
	_, err := f.b.Read(ctx, broker.Position{Stream: tidemill.StreamCommands, Offset: offset}, 1, func(e *broker.Incoming) bool {
		if e.Offset == offset && e.Err == nil {
			failed = fn(e)
		}
		return false
	})
	if err != nil {
		return err
	}
	return failed
}

const (
	logWindow  = 200     // offsets that Log reads at once
	logWindows = 10      // most windows of one call
	logBytes   = 1 << 20 // bytes of one request to Kafka
)

// Log returns commands of people, newest first: those before an offset, or before the end of the stream if
// the offset is 0. It returns at most limit commands, and the offset to continue with; 0 if none is left.
// It may return fewer commands before a part of the stream that has none.
func Log(ctx context.Context, b *broker.Broker, before int64, limit int) (all []Command, next int64, err error) {
	ends, err := b.Ends(ctx, tidemill.StreamCommands)
	if err != nil {
		return nil, 0, fmt.Errorf("list the commands: %w", err)
	}
	starts, err := b.Places(ctx, tidemill.StreamCommands, broker.Earliest())
	if err != nil {
		return nil, 0, fmt.Errorf("list the commands: %w", err)
	}
	first, next := starts[0].Offset, ends[0].Offset
	if before > 0 {
		next = min(next, before)
	}
	for range logWindows {
		if next <= first || len(all) >= limit {
			break
		}
		from := max(first, next-logWindow)
		some, err := readWindow(ctx, b, from, next)
		if err != nil {
			return nil, 0, fmt.Errorf("list the commands: %w", err)
		}
		slices.Reverse(some)
		all, next = append(all, some...), from
	}
	if len(all) > limit {
		all = all[:limit]
		next = all[limit-1].Offset
	}
	if next <= first {
		next = 0
	}
	return all, next, nil
}

// readWindow returns the commands of people in a range of offsets, oldest first.
func readWindow(ctx context.Context, b *broker.Broker, from, to int64) (all []Command, err error) {
	for from < to {
		next, err := b.Read(ctx, broker.Position{Stream: tidemill.StreamCommands, Offset: from}, logBytes, func(e *broker.Incoming) bool {
			if e.Offset >= to {
				return false
			}
			if e.Err == nil && ofPerson(e.Type) {
				all = append(all, read(e))
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if next <= from {
			break
		}
		from = next
	}
	return all, nil
}

// ofPerson reports whether people give commands of a type. The others are reports on the same stream.
func ofPerson(typ string) bool {
	return typ != tidemill.TypeTriggerReplayed && typ != tidemill.TypeKeyPassed
}

// forgotten knows which keys were forgotten. For each key it keeps the hash of the key and the offset
// of the command, 16 bytes in all, because an install may forget millions of keys. The ends of the
// key's events are in the command, and are read from there. It is safe for concurrent use: the
// goroutine that follows the commands adds them, and senders of events ask.
type forgotten struct {
	seed maphash.Seed
	// read returns the event at an offset of the stream commands.
	read func(ctx context.Context, offset int64) (Command, error)
	// topicID returns the present id of a stream's topic.
	topicID func(ctx context.Context, stream string) (string, error)

	mu     sync.Mutex
	newest map[uint64]int64              // offset of the newest command, by the key's hash
	older  map[uint64][]int64            // offsets of earlier commands about keys with that hash; most keys have none
	limits map[string]map[string][]int64 // furthest end of any key in each partition, by stream and id of its topic
	known  map[int64]ends                // commands that were read, by offset
	next   int64                         // offset after the newest command
	later  map[string]int64              // offset below which all commands are older than the end of a topic, by the topic's id
}

// ends has the content of a command that ends a key.
type ends struct {
	key string
	of  map[string]end // by stream
}

// end is where a stream ended. If an earlier version wrote it, it is in the first life of a group, and has no id.
type end struct {
	offsets []int64 // of the partitions
	topic   string  // id of the topic
}

// maxKnown is the number of commands whose ends are kept. With 90 partitions, one takes 1 kB.
const maxKnown = 1024

func newForgotten(read func(ctx context.Context, offset int64) (Command, error), topicID func(ctx context.Context, stream string) (string, error)) *forgotten {
	return &forgotten{seed: maphash.MakeSeed(), read: read, topicID: topicID, newest: map[uint64]int64{}, older: map[uint64][]int64{},
		limits: map[string]map[string][]int64{}, known: map[int64]ends{}, later: map[string]int64{}}
}

// add adds a command that ends a key.
func (f *forgotten) add(c *Command) {
	e, ok := readEnds(c)
	if !ok {
		return
	}
	hash := maphash.String(f.seed, c.Subject)
	f.mu.Lock()
	defer f.mu.Unlock()
	for stream, at := range e.of {
		if f.limits[stream] == nil {
			f.limits[stream] = map[string][]int64{}
		}
		f.limits[stream][at.topic] = raise(f.limits[stream][at.topic], at.offsets)
	}
	if before, again := f.newest[hash]; again {
		f.older[hash] = append(f.older[hash], before)
	}
	f.newest[hash], f.next = c.Offset, c.Offset+1
}

// readEnds returns the ends in a command; false if the command has none.
func readEnds(c *Command) (ends, bool) {
	var d tidemill.KeyPassedData
	if c.Type != tidemill.TypeKeyPassed || c.Subject == "" || json.Unmarshal(c.Data, &d) != nil {
		return ends{}, false
	}
	e := ends{c.Subject, make(map[string]end, len(d.Ends))}
	for stream, offsets := range d.Ends {
		e.of[stream] = end{offsets, d.Topics[stream]}
	}
	return e, true
}

// raise raises each limit to an end that is further.
func raise(limits, to []int64) []int64 {
	for len(limits) < len(to) {
		limits = append(limits, 0)
	}
	for i, at := range to {
		limits[i] = max(limits[i], at)
	}
	return limits
}

// passed reports whether a command ends a key after an event. A key may end, begin again and end
// again, and the commands may be in another order than the ends: any command counts. Most events are
// beyond the ends of all keys, or of a key that was never forgotten; then no command is read.
//
// A stream may have been created again between the event and the command. Then the command ends the key
// unless the stream of the event is the later one.
func (f *forgotten) passed(ctx context.Context, key string, at broker.Position, lives Lives) (bool, error) {
	commands := f.commandsOf(key)
	if len(commands) == 0 {
		return false, nil
	}
	topic := lives.Topic(at)
	if !f.mayEnd(at, topic) {
		return false, nil
	}
	for _, offset := range commands {
		all, err := f.endsAt(ctx, offset)
		if err != nil {
			return false, err
		}
		e, there := all.of[at.Stream]
		if !there || all.key != key {
			continue
		}
		passed := e.isAfter(at, topic)
		if broker.IsOtherTopic(e.topic, topic) {
			later, err := f.isLater(ctx, at.Stream, topic, offset)
			if err != nil {
				return false, err
			}
			passed = !later
		}
		if passed {
			return true, nil
		}
	}
	return false, nil
}

// commandsOf returns the offsets of the commands that may end a key, the newest first.
func (f *forgotten) commandsOf(key string) []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	hash := maphash.String(f.seed, key)
	newest, there := f.newest[hash]
	if !there {
		return nil
	}
	return append([]int64{newest}, f.older[hash]...)
}

// mayEnd reports whether any command may end an event's key after the event.
func (f *forgotten) mayEnd(at broker.Position, topic string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, offsets := range f.limits[at.Stream] {
		if broker.IsOtherTopic(of, topic) || (end{offsets, of}).isAfter(at, topic) {
			return true
		}
	}
	return false
}

// isAfter reports whether an end is after an event of the same topic. The offsets of the end are Kafka's.
func (e end) isAfter(at broker.Position, topic string) bool {
	offset := at.Offset
	if e.topic != "" || topic == "" {
		offset -= broker.LifeOf(offset)
	}
	return int(at.Partition) < len(e.offsets) && offset < e.offsets[at.Partition]
}

// isLater reports whether a topic came after the topic that a command is about. It did if it is the present
// one: the command's topic was the present one when the command was written.
func (f *forgotten) isLater(ctx context.Context, stream, topic string, command int64) (bool, error) {
	f.mu.Lock()
	next, later := f.next, command < f.later[topic]
	f.mu.Unlock()
	if later {
		return true, nil
	}
	now, err := f.topicID(ctx, stream)
	if err != nil || broker.IsOtherTopic(topic, now) {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.later[topic] = next
	return true, nil
}

// endsAt returns the ends in a command, which it reads from the log unless it has read it lately.
func (f *forgotten) endsAt(ctx context.Context, offset int64) (ends, error) {
	f.mu.Lock()
	e, there := f.known[offset]
	f.mu.Unlock()
	if there {
		return e, nil
	}
	c, err := f.read(ctx, offset)
	if err != nil {
		return e, err
	}
	e, _ = readEnds(&c)
	f.mu.Lock()
	defer f.mu.Unlock()
	for old := range f.known {
		if len(f.known) < maxKnown {
			break
		}
		delete(f.known, old)
	}
	f.known[offset] = e
	return e, nil
}

// command reads the command at an offset.
func (f *Follower) command(ctx context.Context, offset int64) (c Command, err error) {
	err = f.readAt(ctx, offset, func(e *broker.Incoming) error { c = read(e); return nil })
	return c, err
}
