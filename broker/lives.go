package broker

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// life is one of the lives of a stream, as a group counts them. A stream that is deleted and created
// again begins another life: Kafka counts its offsets from 0 again, so that an offset alone no longer
// names an event. Therefore all offsets of a group's consumer have the number of the life in their upper
// bits. Such offsets never go back, and parked events, dead letters and the ids of answers stay
// different. In the first life they are Kafka's offsets. Kafka always gets its own
// offsets, with the life in the metadata.
type life struct {
	topic string // id of the topic and of its cluster; empty if Kafka has none (before 2.8)
	base  int64  // first offset of the life
	past  string // ids of the lives before, the last one first
}

const (
	// lifeBits is the number of bits for Kafka's offset. JSON numbers have exactBits, so 511 further lives
	// remain exact in JSON.
	lifeBits  = 44
	exactBits = 53
	pastLives = 4 // most ids of lives before that are kept
)

// LifeOf returns the first offset of the life that an offset of a group's consumer belongs to.
func LifeOf(offset int64) int64 { return max(offset, 0) &^ (1<<lifeBits - 1) }

// kafkaOffset returns the offset that Kafka knows.
func kafkaOffset(offset int64) int64 { return offset - LifeOf(offset) }

// next returns the life that follows.
func (l life) next(topic string) life {
	past := strings.Split(l.topic+","+l.past, ",")
	return life{topic, l.base + 1<<lifeBits, strings.TrimRight(strings.Join(past[:min(len(past), pastLives)], ","), ",")}
}

// at returns the life that an offset belongs to, without its id if that is not kept.
func (l life) at(offset int64) life {
	for offset < l.base {
		topic, past, _ := strings.Cut(l.past, ",")
		l = life{topic, l.base - 1<<lifeBits, past}
	}
	return l
}

// place returns where reading in a life goes on. If the place that is known is of a life before, that is
// the beginning of this one, without the events that have ended.
func (l life) place(known origin) origin {
	if known.offset >= l.base {
		return known
	}
	note, ended := decodeMetadata(known.offset, known.metadata)
	return origin{l.base, encodeMetadata(l.base, note, spansFrom(ended, l.base)) + l.encode()}
}

// hasLife reports whether the id of the partition's topic is compared. Without a group it is compared only if
// it was asked for at the start: a reader of a part of the log is done soon. The caller holds the lock.
func (p *inPartition) hasLife() bool { return p.c.member != nil || p.life.topic != "" }

// lifePrefix is the last part of the metadata of an offset. Versions without lives ignore it.
const lifePrefix = "life1:"

func (l life) encode() string {
	if l == (life{}) {
		return ""
	}
	text := lifePrefix + l.topic + ":" + strconv.FormatInt(l.base>>lifeBits, 10)
	if l.past != "" {
		text += ":" + l.past
	}
	return text
}

func decodeLife(text string) (l life) {
	topic, number, _ := strings.Cut(text, ":")
	number, past, _ := strings.Cut(number, ":")
	n, err := strconv.ParseInt(number, 10, 63-lifeBits)
	if err != nil || n < 0 {
		return life{}
	}
	return life{topic, n << lifeBits, past}
}

// lifeOf returns the life in the metadata of an offset.
func lifeOf(metadata string) life {
	_, rest, _ := cutNote(metadata)
	_, text, _ := strings.Cut(rest, lifePrefix)
	return decodeLife(text)
}

// withLife replaces the life in the metadata of an offset.
func withLife(metadata string, l life) string {
	note, rest, noted := cutNote(metadata)
	rest, _, _ = strings.Cut(rest, lifePrefix)
	if noted {
		rest = encodeNote(note) + rest
	}
	return rest + l.encode()
}

// IsOtherTopic reports whether a topic's id is of another topic than before. In another cluster it is a copy.
func IsOtherTopic(before, now string) bool {
	was, oneCluster, _ := strings.Cut(before, ".")
	is, sameCluster, _ := strings.Cut(now, ".")
	return was != "" && is != "" && was != is && oneCluster == sameCluster
}

// topicIDs asks one server for the ids of some topics. A topic that the server does not know is left out.
func (b *Broker) topicIDs(ctx context.Context, node int32, topics ...string) (ids map[string]string, nodes []int32, err error) {
	ids = map[string]string{}
	if !b.dialer.hasTopicIDs.Load() {
		return ids, nil, nil
	}
	ctx, cancel := b.limitTime(ctx)
	defer cancel()
	var frame wire.Frame
	frame.TopicIDs(b.names.Install(), topics)
	answer, err := b.call(ctx, node, &frame, nil)
	if err != nil {
		return nil, nil, err
	}
	all, err := wire.ReadTopicIDs(answer)
	cluster := fnv.New32a()
	cluster.Write([]byte(all.Cluster))
	for name, id := range all.IDs {
		ids[name] = "" // some servers speak this version and have no ids
		if id != ([16]byte{}) {
			ids[name] = base64.RawURLEncoding.EncodeToString(id[:8]) + "." + base64.RawURLEncoding.EncodeToString(cluster.Sum(nil))
		}
	}
	return ids, all.Nodes, err
}

// Topic returns the id that the topic of a position had, for an offset of this consumer; empty if the
// consumer does not know it.
func (c *Consumer) Topic(at Position) string {
	c.mu.Lock()
	p := c.parts[wire.TopicPartition{Topic: c.b.names.Topic(at.Stream), Partition: at.Partition}]
	c.mu.Unlock()
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life.at(at.Offset).topic
}

// topicNow returns the id of a topic; empty if this Kafka has no ids. A server may not know yet that the
// topic was created again. So all are asked, and until they know it and agree the error is a passing one.
func (b *Broker) topicNow(ctx context.Context, topic string) (string, error) {
	ids, nodes, err := b.topicIDs(ctx, anyNode, topic)
	if err != nil || !b.dialer.hasTopicIDs.Load() {
		return ids[topic], err
	}
	if _, known := ids[topic]; !known {
		return "", kafka.UnknownTopicOrPartition
	}
	for _, node := range nodes {
		one, cancel := context.WithTimeout(ctx, oneServer)
		its, _, err := b.topicIDs(one, node, topic)
		cancel()
		switch {
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err != nil: // it may be gone for good, and it cannot lead the partitions now
		case its[topic] != ids[topic]:
			return "", kafka.LeaderNotAvailable
		}
	}
	return ids[topic], nil
}

// firstPlaces returns where a consumer without a group begins to read. It asks for the topics' ids first: an
// offset of a stream that is created again meanwhile must not get the new id.
func (c *Consumer) firstPlaces(ctx context.Context, parts []wire.TopicPartition, from Start) (map[wire.TopicPartition]origin, error) {
	now := map[string]life{}
	for _, tp := range parts {
		if _, asked := now[tp.Topic]; asked {
			continue
		}
		id, err := c.b.agreedTopic(ctx, tp.Topic)
		if err != nil {
			return nil, fmt.Errorf("find the id of topic %s: %w", tp.Topic, err)
		}
		now[tp.Topic] = life{topic: id}
	}
	places, err := c.b.startOffsets(ctx, parts, from)
	for tp, at := range places {
		places[tp] = origin{at.offset, now[tp.Topic].encode()}
	}
	return places, err
}

// TopicID returns the id of a stream's topic; empty if this Kafka has no ids (before 2.8). A stream that is deleted and
// created again has another one, and other events at its offsets.
func (b *Broker) TopicID(ctx context.Context, stream string) (string, error) {
	id, err := b.agreedTopic(ctx, b.names.Topic(stream))
	if err != nil {
		return "", fmt.Errorf("find the id of stream %s: %w", stream, err)
	}
	return id, nil
}

// agreedTopic is topicNow, which is asked again until the servers agree.
func (b *Broker) agreedTopic(ctx context.Context, topic string) (string, error) {
	for w := (backoff{}); ; {
		id, err := b.topicNow(ctx, topic)
		if err == nil || !isTransient(err) || errors.Is(err, kafka.UnknownTopicOrPartition) {
			return id, noStream(err)
		}
		if ended := w.wait(ctx); ended != nil {
			return "", errors.Join(err, ended)
		}
	}
}

// oneServer is the time that each server has to say a topic's id.
const oneServer = 500 * time.Millisecond

// knownLives finds the lives of partitions. It asks once for each topic.
type knownLives struct {
	b   *Broker
	ids map[string]topicID
}

// topicID is the answer of topicNow.
type topicID struct {
	id  string
	err error
}

// after returns the life of a partition now, which was in a life before.
func (k *knownLives) after(ctx context.Context, topic string, l life) (now life, isNew bool, err error) {
	t, asked := k.ids[topic]
	if !asked {
		t.id, t.err = k.b.topicNow(ctx, topic)
		if k.ids == nil {
			k.ids = map[string]topicID{}
		}
		k.ids[topic] = t
	}
	if t.err != nil {
		return l, false, fmt.Errorf("find out whether topic %s was created again: %w", topic, t.err)
	}
	if IsOtherTopic(l.topic, t.id) {
		return l.next(t.id), true, nil
	}
	if t.id != "" {
		l.topic = t.id
	}
	return l, false, nil
}

// skipToNewLog goes on at the beginning of a stream that was created again, if Kafka has no ids of topics.
func (c *Consumer) skipToNewLog(a fetchAsk, start int64) {
	if c.member == nil {
		c.skipToStart(a, start)
		return
	}
	a.p.mu.Lock()
	l := a.p.life.next("")
	a.p.mu.Unlock()
	if err := c.beginLife(c.ctx, a, l); err != nil && !isTransient(err) && c.ctx.Err() == nil {
		c.failReading(fmt.Errorf("begin to read stream %s, partition %d, again: %w", a.p.stream, a.p.tp.Partition, err))
	}
}

// beginAnew goes on at the beginning of a stream that was created again, without a group.
func (c *Consumer) beginAnew(ctx context.Context, a fetchAsk, l life) error {
	start, _, err := c.b.logEnds(ctx, a.p.tp)
	if err == nil && c.skipToStart(a, start) {
		a.p.mu.Lock()
		a.p.life = l
		a.p.mu.Unlock()
	}
	return err
}

// skipToStart goes back to the start of a new log. The offsets are Kafka's, because no group keeps them.
func (c *Consumer) skipToStart(a fetchAsk, start int64) bool {
	return c.skipGap(a, start, start, lostError(ErrCut, "the stream was deleted and created again; its events are read from offset %d, and events of the old stream that were not read are lost", start))
}

// beginLife goes on at the beginning of a stream that was created again. Its dead letter and the group's
// record are written first: Kafka forgets the group's offset with the stream, and no later life may get
// the number of this one. The record has the committed note, because a transaction with a later one may fail.
func (c *Consumer) beginLife(ctx context.Context, a fetchAsk, l life) error {
	a.p.mu.Lock()
	expected := a.p.isExpected(a)
	note, _ := decodeMetadata(a.p.committed, a.p.metadata)
	a.p.mu.Unlock()
	if !expected {
		return nil
	}
	r := c.member.recordOf(a.p.tp, origin{l.base, encodeMetadata(0, note, nil) + l.encode()})
	err := c.member.reportNewLife(ctx, r)
	if err == nil {
		err = c.b.writeGroupRecords(ctx, c.letters.p, []groupRecord{r})
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.p.isExpected(a) {
		a.p.life, a.p.notBefore = l, time.Time{}
		c.enqueue(c.newDelivery(a, nil, l.base))
		c.counts.lost.Add(1) // the number of events of the old stream is not known
	}
	return nil
}

// isNewLog reports whether the first event of a partition is newer than all that were read from it. A log
// that lost its end has none that is. A group without an offset compares in the same way; see restored.
func (c *Consumer) isNewLog(p *inPartition, start int64) (newer bool) {
	p.mu.Lock()
	newest := p.newest
	p.mu.Unlock()
	if newest.IsZero() {
		return false
	}
	at := Position{Stream: p.stream, Partition: p.tp.Partition, Offset: start}
	_, err := c.b.Read(c.ctx, at, partitionFetch, func(e *Incoming) bool {
		newer = e.Time.After(newest)
		return false
	})
	return newer && err == nil
}

// startPlaces returns where to start reading. The wait has a limit, because nothing is committed
// meanwhile. And only the next generation would notice that the stream was deleted.
func (m *member) startPlaces(ctx context.Context, added []wire.TopicPartition) (map[wire.TopicPartition]origin, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	known, err := m.c.b.committedOffsets(ctx, m.group, added)
	if err != nil {
		return nil, err
	}
	places := map[wire.TopicPartition]origin{}
	var missing []wire.TopicPartition
	var again []groupRecord
	lives := knownLives{b: m.c.b}
	recorded := sync.OnceValues(func() (map[wire.TopicPartition]groupRecord, error) { return m.recorded(ctx) })
	for _, tp := range added {
		o, ok := known[tp]
		if !ok || o.Offset < 0 {
			missing = append(missing, tp)
			continue
		}
		place, last, err := m.placeOf(ctx, tp, o, recorded, &lives)
		switch {
		case err != nil:
			return nil, err
		case last != nil:
			again = append(again, *last)
		default:
			places[tp] = place
		}
	}
	if err := m.addMissing(ctx, places, missing, again, &lives); err != nil {
		return nil, err
	}
	return places, m.recordStarts(ctx, places)
}

// placeOf returns where to go on after a committed offset. If the stream was created again since, it returns
// the group's last place instead, which a record may have.
func (m *member) placeOf(ctx context.Context, tp wire.TopicPartition, o wire.CommittedOffset, recorded func() (map[wire.TopicPartition]groupRecord, error), lives *knownLives) (origin, *groupRecord, error) {
	before := lifeOf(o.Metadata)
	l, isNew, err := lives.after(ctx, tp.Topic, before)
	unknown := before == (life{}) && m.c.b.dialer.hasTopicIDs.Load()
	if err != nil || !isNew && !unknown {
		return origin{l.base + o.Offset, withLife(o.Metadata, l)}, nil, err
	}
	records, err := recorded()
	if err != nil {
		return origin{}, nil, err
	}
	last := m.recordOf(tp, origin{o.Offset, o.Metadata})
	if r := records[tp]; unknown { // a person or an earlier version has committed it, in the present stream
		l, _, err = lives.after(ctx, tp.Topic, lifeOf(r.Metadata))
		return origin{l.base + o.Offset, withLife(o.Metadata, l)}, nil, err
	} else if lifeOf(r.Metadata).base > before.base { // a life has begun, and events of the one before are open
		if l, isNew, err = lives.after(ctx, tp.Topic, lifeOf(r.Metadata)); err != nil || !isNew {
			return l.place(origin{before.base + o.Offset, o.Metadata}), nil, err
		}
		last = r
	}
	return origin{}, &last, nil
}

// addMissing adds the places of partitions for which Kafka has no offset of the group. A record or an
// event on a companion shows that Kafka has forgotten the offset. Otherwise the partition was added
// to a stream that the group reads, or the group is new. again are the partitions of streams that were
// created again.
func (m *member) addMissing(ctx context.Context, places map[wire.TopicPartition]origin, missing []wire.TopicPartition, again []groupRecord, lives *knownLives) error {
	if len(missing)+len(again) == 0 {
		return nil
	}
	records, err := m.recorded(ctx)
	if err != nil {
		return err
	}
	var fresh, grown []wire.TopicPartition
	lost := again
	for _, tp := range missing {
		if r, ok := records[tp]; ok {
			lost = append(lost, r)
		} else if m.began[tp.Topic] {
			grown = append(grown, tp)
		} else {
			fresh = append(fresh, tp)
		}
	}
	fresh, unrecorded, err := m.withoutRecord(ctx, fresh)
	if err == nil {
		err = m.restore(ctx, places, append(lost, unrecorded...), records, lives)
	}
	if err == nil {
		err = m.addFirstOffsets(ctx, places, fresh, m.c.opt.Start, lives)
	}
	if err == nil {
		err = m.addFirstOffsets(ctx, places, grown, Earliest(), lives)
	}
	return err
}

// addFirstOffsets adds the first offsets to read in partitions for which the group has no offset.
func (m *member) addFirstOffsets(ctx context.Context, places map[wire.TopicPartition]origin, parts []wire.TopicPartition, from Start, lives *knownLives) error {
	starts, err := m.firstOffsets(ctx, parts, from, lives)
	if err == nil && len(starts) > 0 {
		err = m.commitStarts(ctx, starts)
	}
	maps.Copy(places, starts)
	return err
}

// firstOffsets finds these offsets. It asks for the topics' ids first: an offset of a stream that is created again
// meanwhile must not get the new id.
func (m *member) firstOffsets(ctx context.Context, parts []wire.TopicPartition, from Start, lives *knownLives) (map[wire.TopicPartition]origin, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	now := map[string]life{}
	for _, tp := range parts {
		l, _, err := lives.after(ctx, tp.Topic, life{})
		if err != nil {
			return nil, err
		}
		now[tp.Topic] = l
	}
	starts, err := m.c.b.startOffsets(ctx, parts, from)
	for tp, at := range starts {
		starts[tp] = origin{at.offset, now[tp.Topic].encode()}
	}
	return starts, err
}

// commitStarts commits the first or restored offsets of a group before the member reads from them. Otherwise,
// if the first reader of a partition died before its first commit, the next reader would search the
// start again. A start at the latest event would have moved by then.
func (m *member) commitStarts(ctx context.Context, starts map[wire.TopicPartition]origin) error {
	m.committing.Lock()
	defer m.committing.Unlock()
	for {
		topics := map[string][]kafka.OffsetCommit{}
		for tp, from := range starts {
			with := from.metadata
			if m.bare && lifeOf(with).base == 0 {
				with = withLife(with, life{})
			}
			topics[tp.Topic] = append(topics[tp.Topic], kafka.OffsetCommit{Partition: int(tp.Partition), Offset: kafkaOffset(from.offset), Metadata: with})
		}
		refused, err := m.commitOffsets(ctx, topics)
		for tp, e := range refused {
			err = errors.Join(err, named("commit the start of", fmt.Sprintf("%s/%d", tp.Topic, tp.Partition), e))
		}
		if !errors.Is(err, kafka.OffsetMetadataTooLarge) || m.bare {
			return markOvertaken(asMembership(err))
		}
		m.bare = true
	}
}
