package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker/internal/wire"
)

// groupRecord is how far a group has read a partition, written on the stream group-offsets. Kafka
// forgets the offsets and notes of a group that has had no members for
// offsets.retention.minutes, a week by default. The newest record of a partition counts.
//
// A member writes a record of each partition before it begins to read the partition. So a partition
// without an offset and without a record is new to its group, and a partition with a record is not.
// The GroupRefresher writes the other records: a final one when the group has no members, and from
// time to time one of a group that has members. No transaction waits for a record.
//
// All records are on the stream's first partition, however many partitions the stream has.
type groupRecord struct {
	Group     string `json:"group"`
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Metadata  string `json:"metadata,omitempty"` // metadata that was committed with the offset
	// Final says that the group had no members when its offset was read. A member that begins to
	// read the partition afterwards writes a record that is not final. So nothing was committed
	// after the newest record if that record is final.
	Final bool `json:"final,omitempty"`
	// First says that nothing was read yet: it is the end that the partition had when the group began.
	First bool `json:"first,omitempty"`

	at time.Time // time when Kafka got the record
}

// same reports whether two records say the same.
func (r groupRecord) same(o groupRecord) bool {
	return r.Offset == o.Offset && r.Metadata == o.Metadata && r.Final == o.Final
}

// isOfEarlierLife reports whether a member has begun a later life of the stream. It records that at
// once, and commits an offset when the open events of the life before have ended.
func (r groupRecord) isOfEarlierLife(than groupRecord) bool {
	return lifeOf(r.Metadata).base < lifeOf(than.Metadata).base
}

func (r groupRecord) hasNote() bool {
	note, _ := decodeMetadata(r.Offset, r.Metadata)
	return note != ""
}

// recordKey identifies a record. Compaction of the stream keeps the newest record of each key.
func (r groupRecord) recordKey() string {
	return r.Group + "/" + r.Stream + "/" + strconv.Itoa(int(r.Partition))
}

// groupRecords are the newest records of groups, by group and partition.
type groupRecords struct {
	all  map[string]map[wire.TopicPartition]groupRecord
	next int64 // offset of the first record that was not read
}

// readGroupRecords adds the records that were written since the last call. An install without the
// stream has no records.
func (b *Broker) readGroupRecords(ctx context.Context, to *groupRecords) error {
	if there, err := b.keepsGroupRecords(ctx); err != nil || !there {
		return err
	}
	ends, err := b.Ends(ctx, tidemill.StreamGroupOffsets)
	if err != nil {
		return err
	}
	if to.all == nil || ends[0].Offset < to.next { // the stream was made again
		*to = groupRecords{all: map[string]map[wire.TopicPartition]groupRecord{}}
	}
	var bad error
	stopped, err := b.ReadBack(ctx, []Position{{Stream: tidemill.StreamGroupOffsets, Offset: to.next}}, func(e *Incoming) {
		r := groupRecord{at: e.Time}
		if e.Type != tidemill.TypeGroupRecorded {
			return
		}
		if err := json.Unmarshal(e.Data, &r); err != nil {
			bad = fmt.Errorf("offset %d: %w", e.Offset, err)
			return
		}
		if to.all[r.Group] == nil {
			to.all[r.Group] = map[wire.TopicPartition]groupRecord{}
		}
		if tp := (wire.TopicPartition{Topic: b.names.Topic(r.Stream), Partition: r.Partition}); !r.isOfEarlierLife(to.all[r.Group][tp]) {
			to.all[r.Group][tp] = r
		}
	})
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("read how far the groups were, on stream %s: %w", tidemill.StreamGroupOffsets, err)
	}
	to.next = stopped[0].Offset
	return nil
}

// keepsGroupRecords reports whether the install has the stream of records. An install of an earlier
// version has none until a process with the new version has made its streams.
func (b *Broker) keepsGroupRecords(ctx context.Context) (bool, error) {
	_, err := b.leaders(ctx, b.names.Topic(tidemill.StreamGroupOffsets), maxLeaderAge)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return false, nil
	}
	return err == nil, err
}

// writeGroupRecords writes records and waits until Kafka has all of them.
func (b *Broker) writeGroupRecords(ctx context.Context, p *Producer, all []groupRecord) error {
	if there, err := b.keepsGroupRecords(ctx); err != nil || !there || len(all) == 0 {
		return err
	}
	told := make(chan error, len(all))
	for _, r := range all {
		v, err := b.groupRecordEvent(r)
		if err != nil {
			return err
		}
		p.SendTo(ctx, tidemill.StreamGroupOffsets, 0, v, func(_ Receipt, err error) { told <- err })
	}
	var errs []error
	for range all {
		select {
		case err := <-told:
			errs = append(errs, err)
		case <-ctx.Done():
			return fmt.Errorf("record how far group %s has read: %w", all[0].Group, context.Cause(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record how far group %s has read: %w", all[0].Group, retryDoubt(err))
	}
	return nil
}

// retryDoubt marks a doubtful outcome as passing. A second copy of a record is harmless, and so is
// one of a dead letter with the same id.
func retryDoubt(err error) error {
	if errors.Is(err, ErrInDoubt) {
		return errors.Join(kafka.RequestTimedOut, err)
	}
	return err
}

func (b *Broker) groupRecordEvent(r groupRecord) (*View, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return &View{ID: tidemill.ID(tidemill.TypeGroupRecorded, r.recordKey(), now, string(data)), Source: b.names.Source("broker"),
		Type: tidemill.TypeGroupRecorded, Subject: r.recordKey(), Time: now, DataContentType: "application/json",
		DataSchema: tidemill.Schema(tidemill.TypeGroupRecorded), Key: []byte(r.recordKey()), Data: data}, nil
}

// recordStarts records where a member begins to read. It must succeed before the first event is
// handed out: the record makes an earlier final record obsolete.
func (m *member) recordStarts(ctx context.Context, places map[wire.TopicPartition]origin) error {
	all := make([]groupRecord, 0, len(places))
	for tp, from := range places {
		all = append(all, m.recordOf(tp, from))
	}
	return m.c.b.writeGroupRecords(ctx, m.c.letters.p, all)
}

func (m *member) recordOf(tp wire.TopicPartition, from origin) groupRecord {
	stream, _ := m.c.b.names.Stream(tp.Topic)
	return groupRecord{Group: m.c.opt.Group, Stream: stream, Partition: tp.Partition, Offset: kafkaOffset(from.offset), Metadata: from.metadata}
}

// recorded returns the newest records of the member's group.
func (m *member) recorded(ctx context.Context) (map[wire.TopicPartition]groupRecord, error) {
	var known groupRecords
	err := m.c.b.readGroupRecords(ctx, &known)
	return known.all[m.c.opt.Group], err
}

// withoutRecord finds the partitions that are not new to the group although they have neither an
// offset nor a record, because the group has written to a companion. Only the beginning of the log
// is certainly not after the group's last place.
func (m *member) withoutRecord(ctx context.Context, fresh []wire.TopicPartition) (still []wire.TopicPartition, lost []groupRecord, err error) {
	ends := map[int32]int64{} // largest end among the companions, by partition
	for _, companion := range m.c.opt.Companions {
		all, err := m.c.b.Ends(ctx, companion)
		if err != nil && !errors.Is(err, ErrNoStream) {
			return nil, nil, err
		}
		for _, p := range all {
			ends[p.Partition] = max(ends[p.Partition], p.Offset)
		}
	}
	for _, tp := range fresh {
		if ends[tp.Partition] == 0 {
			still = append(still, tp)
			continue
		}
		begins, err := m.c.b.startOffsets(ctx, []wire.TopicPartition{tp}, Earliest())
		if err != nil {
			return nil, nil, err
		}
		r := m.recordOf(tp, begins[tp])
		r.at = time.Unix(0, 0)
		lost = append(lost, r)
	}
	return still, lost, nil
}

// clockSlack is how much earlier than its time a record may have been read, and how much the clocks
// of publishers may differ from ours.
const clockSlack = 10 * time.Second

// restored is a partition whose offset Kafka has forgotten, or whose stream was created again.
type restored struct {
	record  groupRecord
	place   origin // place where reading goes on
	end     int64  // end of the stream
	again   bool   // whether the partition has events before the record's offset that are newer than the record
	renewed bool   // whether Kafka says that the stream was created again
}

// restore gives the group the recorded offsets and notes of partitions for which Kafka has none,
// and those of their parked streams. If the group may have read further than its record, a dead
// letter names the offsets. It is written before the offsets are committed, so it is not lost.
func (m *member) restore(ctx context.Context, places map[wire.TopicPartition]origin, lost []groupRecord, known map[wire.TopicPartition]groupRecord, lives *knownLives) error {
	if len(lost) == 0 {
		return nil
	}
	starts := map[wire.TopicPartition]origin{}
	for _, r := range lost {
		one, err := m.restored(ctx, r, lives)
		if err == nil {
			err = m.reportForgotten(ctx, one)
		}
		if err != nil {
			return fmt.Errorf("find where group %s was in %s/%d: %w", m.c.opt.Group, r.Stream, r.Partition, err)
		}
		tp := wire.TopicPartition{Topic: m.c.b.names.Topic(r.Stream), Partition: r.Partition}
		starts[tp], places[tp] = one.place, one.place
	}
	if err := m.addMarks(ctx, starts, known); err != nil {
		return err
	}
	return m.commitStarts(ctx, starts)
}

// restored finds the place where reading goes on. A stream that was deleted and created again has other
// events at the same offsets. They are read from the first one. A Kafka without topic ids shows it only
// by their times: all of them are newer than the record.
func (m *member) restored(ctx context.Context, r groupRecord, lives *knownLives) (restored, error) {
	tp := wire.TopicPartition{Topic: m.c.b.names.Topic(r.Stream), Partition: r.Partition}
	l, renewed, err := lives.after(ctx, tp.Topic, lifeOf(r.Metadata))
	if err != nil {
		return restored{}, err
	}
	if renewed {
		note, _ := decodeMetadata(r.Offset, r.Metadata)
		return restored{record: r, place: origin{l.base, encodeMetadata(0, note, nil) + l.encode()}, renewed: true}, nil
	}
	if r.First && lifeOf(r.Metadata) == l {
		return restored{record: r, place: origin{l.base + r.Offset, r.Metadata}}, nil
	}
	ends, err := m.c.b.startOffsets(ctx, []wire.TopicPartition{tp}, Latest())
	one := restored{record: r, place: origin{l.base + r.Offset, withLife(r.Metadata, l)}, end: ends[tp].offset}
	if err != nil || lifeOf(r.Metadata) == l { // Kafka says that it is the same topic
		return one, err
	}
	newer, err := m.c.b.startOffsets(ctx, []wire.TopicPartition{tp}, Since(r.at.Add(clockSlack)))
	if err != nil {
		return restored{}, err
	}
	if first := newer[tp].offset; first < r.Offset {
		one.again = one.end < r.Offset
		if !one.again {
			one.again, err = m.isNewerBefore(ctx, r)
		}
		if one.again {
			l = l.next(l.topic)
			one.place = origin{l.base + first, l.encode()}
		}
	}
	return one, err
}

// isNewerBefore reports whether the last event before a record's offset is newer than the record. A
// single publisher with a wrong clock may have written a newer event anywhere, so this one is asked.
// If no event is near the offset, the stream is shorter than it was, or has only markers there.
func (m *member) isNewerBefore(ctx context.Context, r groupRecord) (bool, error) {
	newer := true
	for at := max(0, r.Offset-eventsBefore); at < r.Offset; {
		next, err := m.c.b.Read(ctx, Position{Stream: r.Stream, Partition: r.Partition, Offset: at}, partitionFetch, func(e *Incoming) bool {
			if e.Offset < r.Offset {
				newer = e.Time.After(r.at.Add(clockSlack))
			}
			return e.Offset < r.Offset
		})
		if err != nil {
			return false, err
		}
		if next <= at { // the log ends here
			return newer, nil
		}
		at = next
	}
	return newer, nil
}

// eventsBefore is how many offsets before a record's offset may hold its last event. Markers of
// transactions take offsets, too.
const eventsBefore = 100

// addMarks adds the recorded marks in companions, unless Kafka has them still.
func (m *member) addMarks(ctx context.Context, starts map[wire.TopicPartition]origin, known map[wire.TopicPartition]groupRecord) error {
	var marks []wire.TopicPartition
	_, companions := m.topics()
	for tp := range starts {
		for _, topic := range companions {
			mark := wire.TopicPartition{Topic: topic, Partition: tp.Partition}
			if _, ok := known[mark]; ok {
				marks = append(marks, mark)
			}
		}
	}
	if len(marks) == 0 {
		return nil
	}
	have, err := m.c.b.committedOffsets(ctx, m.group, marks)
	if err != nil {
		return err
	}
	for _, tp := range marks {
		if o, ok := have[tp]; !ok || o.Offset < 0 {
			starts[tp] = origin{known[tp].Offset, known[tp].Metadata}
		}
	}
	return nil
}

// reportForgotten logs that Kafka has forgotten an offset. It writes a dead letter if the record may
// not be the group's last place.
func (m *member) reportForgotten(ctx context.Context, one restored) error {
	r := one.record
	if one.renewed {
		return m.reportNewLife(ctx, m.recordOf(wire.TopicPartition{Topic: m.c.b.names.Topic(r.Stream), Partition: r.Partition}, one.place))
	}
	if r.First && !one.again {
		return nil
	}
	l := deadLetter{stream: r.Stream, partition: r.Partition, offset: one.place.offset, last: LifeOf(one.place.offset) + one.end - 1, gap: true}
	m.c.b.log.Warn("consumer: Kafka has forgotten the group's offset; reading starts at the recorded one", "group", m.c.opt.Group, "stream", r.Stream,
		"partition", r.Partition, "offset", one.place.offset)
	switch {
	case one.end <= kafkaOffset(one.place.offset):
		return nil // no event can have been read after the record
	case r.at.Unix() == 0:
		l.reason = errors.New("the group's offset was forgotten by Kafka, and no record of the offset is left; the events from here on are read, and some may be handled a second time")
	case one.again:
		l.reason = fmt.Errorf("the group's offset %d was forgotten by Kafka, and the stream has newer events below it: it was made again, or clocks differ; the events from here on are read, and some may be handled a second time", r.Offset)
	case !r.Final:
		l.reason = fmt.Errorf("the group's offset was forgotten by Kafka, because the group had no members for longer than Kafka's offsets.retention.minutes; the last record of the offset is of %s, and the events from here on are read, so some may be handled a second time", r.at.UTC().Format(time.RFC3339))
	default:
		return nil
	}
	return m.c.letters.publishForgotten(ctx, l, r.at)
}

// reportNewLife writes a dead letter about a stream that was created again, and waits until Kafka has it.
// All members give it the same id.
func (m *member) reportNewLife(ctx context.Context, r groupRecord) error {
	at := lifeOf(r.Metadata).base
	l := deadLetter{stream: r.Stream, partition: r.Partition, offset: at, last: at, gap: true,
		reason: fmt.Errorf("the stream was deleted and created again; its events are read from the beginning, and events of the old stream that group %s had not read are lost", r.Group)}
	m.c.b.log.Error("consumer: the stream was deleted and created again; reading starts at its beginning", "group", r.Group, "stream", r.Stream,
		"partition", r.Partition, "reason", l.reason)
	return m.c.letters.publishForgotten(ctx, l, time.Time{})
}

// publishForgotten writes a dead letter about a forgotten offset and waits until Kafka has it.
// The event at that offset may have another dead letter, so the id differs from that one.
func (d *deadLetters) publishForgotten(ctx context.Context, l deadLetter, at time.Time) error {
	v, err := d.event(l)
	if err != nil {
		return err
	}
	v.ID = tidemill.ID("forgotten-offset", d.c.opt.Group, l.stream, strconv.Itoa(int(l.partition)), strconv.FormatInt(l.offset, 10), at.UTC().Format(time.RFC3339Nano))
	_, err = d.p.Publish(ctx, tidemill.StreamDeadLetters, v)
	return retryDoubt(err)
}
