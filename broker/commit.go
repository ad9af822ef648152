package broker

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

// eachPartition calls do for every partition. The consumer's lock is not held during the calls.
func (c *Consumer) eachPartition(do func(*inPartition)) {
	c.mu.Lock()
	all := make([]*inPartition, 0, len(c.parts))
	for _, p := range c.parts {
		all = append(all, p)
	}
	c.mu.Unlock()
	for _, p := range all {
		do(p)
	}
}

// drainedBy reports whether a draining partition may be given up. The caller holds its lock.
func (p *inPartition) drainedBy(now time.Time) bool {
	return p.mark.openCount() == 0 && p.parting != leaving && !p.reserved || now.After(p.drainBy)
}

// countDraining counts the partitions that still drain, and returns the partitions that are
// drained.
func (c *Consumer) countDraining(now time.Time) (waiting int, ready []*inPartition) {
	c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case !p.draining || p.gone:
		case p.drainedBy(now):
			ready = append(ready, p)
		default:
			waiting++
		}
	})
	return waiting, ready
}

// recommitEvery is the interval after which a member commits all offsets again. A commit that got no answer
// may still be on its way on a connection that has ended. If it comes after later commits, Kafka
// takes its lower offset.
const recommitEvery = time.Minute

// commit commits the offsets that have changed for the present generation, or all if they are to be
// committed again. Kafka refuses it if the generation has ended.
func (m *member) commit(ctx context.Context, again bool) error {
	type moved struct {
		p     *inPartition
		epoch uint64
		to    int64
		with  string
	}
	m.committing.Lock()
	defer m.committing.Unlock()
	var all []moved
	topics := map[string][]kafka.OffsetCommit{}
	m.c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		with := p.metadataAt(p.mark.next, m.bare)
		if !p.gone && !p.reserved && !p.surplus && (p.mark.next > p.committed || with != p.metadata || again && p.mark.next == p.committed) {
			all = append(all, moved{p, p.epoch, p.mark.next, with})
			topics[p.tp.Topic] = append(topics[p.tp.Topic], kafka.OffsetCommit{Partition: int(p.tp.Partition), Offset: kafkaOffset(p.mark.next), Metadata: with})
		}
	})
	if len(all) == 0 {
		return nil
	}
	refused, err := m.commitOffsets(ctx, topics)
	if err != nil {
		return err
	}
	bare := m.bare // state at the time of these offsets
	for _, c := range all {
		if e := refused[c.p.tp]; e != nil {
			e = m.dropSpans(e, bare && c.with != "")
			err = graverError(err, fmt.Errorf("commit offset of %s/%d: %w", c.p.stream, c.p.tp.Partition, asMembership(e)))
			continue
		}
		c.p.mu.Lock()
		if c.p.epoch == c.epoch {
			c.p.committed, c.p.metadata = max(c.p.committed, c.to), c.with
		}
		c.p.mu.Unlock()
	}
	return err
}

// commitRegularly commits the offsets that have changed, or from time to time all. It returns only an error that
// ends the membership.
func (m *member) commitRegularly(ctx context.Context) error {
	m.committed = time.Now()
	again := m.committed.Sub(m.recommitted) >= m.c.b.recommitEvery
	err := m.commit(ctx, again)
	if again && err == nil {
		m.recommitted = m.committed
	}
	switch {
	case errors.Is(err, errForgotten):
		return err
	case refusedForGood(err):
		m.c.failReading(fmt.Errorf("group %s: %w", m.group, err))
	case err != nil && ctx.Err() == nil:
		m.c.b.log.Warn("consumer: committing offsets failed; retrying", "group", m.group, "reason", err)
	}
	return nil
}

// dropSpans turns off the spans of ended events if the metadata was too large for Kafka. The next
// commits contain only the note. If the note alone is too large, the commit still fails.
func (m *member) dropSpans(err error, alone bool) error {
	if !errors.Is(err, kafka.OffsetMetadataTooLarge) {
		return err
	}
	m.bare = true
	if alone {
		err = fmt.Errorf("%w: %w", errNoteTooLarge, err)
	}
	return err
}

// refusedForGood reports whether the commit of an offset will also fail at every later tick. Such a
// refusal ends reading. Otherwise the consumer would continue to work, and all its work would be
// repeated after the next rebalance.
func refusedForGood(err error) bool {
	var code kafka.Error
	return errors.Is(err, errNoteTooLarge) || errors.As(err, &code) && !passingCode(code) &&
		!slices.Contains([]kafka.Error{kafka.RebalanceInProgress, kafka.OffsetMetadataTooLarge, kafka.Unknown}, code)
}

// commitOffsets sends offsets for the present generation and returns the refused ones.
func (m *member) commitOffsets(ctx context.Context, topics map[string][]kafka.OffsetCommit) (map[wire.TopicPartition]error, error) {
	res, err := m.c.b.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: m.group, GenerationID: int(m.generation),
		MemberID: m.id, Topics: topics})
	if err != nil {
		return nil, fmt.Errorf("commit offsets of group %s: %w", m.group, err)
	}
	refused := map[wire.TopicPartition]error{}
	for topic, parts := range res.Topics {
		for _, p := range parts {
			if p.Error != nil {
				refused[wire.TopicPartition{Topic: topic, Partition: int32(p.Partition)}] = p.Error
			}
		}
	}
	return refused, nil
}

// reserve leaves partitions to a transaction until the returned function is called, and fixes the
// offsets that the transaction commits. In Kafka the last written offset counts. Another commit
// between the transaction's offsets and its end would overwrite these offsets, so that the input of
// the transaction would be read again. Also, the transaction's offset must not be lower than the
// committed offset. The homes of marks are reserved too, so that the member does not give them up
// during the transaction.
func (m *member) reserve(places map[wire.TopicPartition]*txPlace, marks []txMark) (release func()) {
	parts := make([]*inPartition, 0, len(places)+len(marks))
	for _, mark := range marks {
		parts = append(parts, mark.home)
	}
	m.committing.Lock() // waits for a commit that is under way
	defer m.committing.Unlock()
	for _, place := range places {
		parts = append(parts, place.p)
		place.fixOffset(m.bare)
	}
	for _, p := range parts {
		p.reserve(true)
	}
	return func() {
		for _, p := range parts {
			p.reserve(false)
		}
	}
}

// reserve leaves the partition to a transaction (true), or ends the reservation (false).
func (p *inPartition) reserve(to bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = to
	if !to && p.draining {
		p.c.member.nudge() // the member waits for the end of the transaction
	}
}

// dropEnded drops the spans of ended events from the metadata, because Kafka allows less metadata
// than these spans need.
func (m *member) dropEnded(places map[wire.TopicPartition]*txPlace) {
	m.committing.Lock()
	m.bare = true
	m.committing.Unlock()
	for _, place := range places {
		place.p.mu.Lock()
		place.metadata = place.p.metadataAt(place.next, true)
		place.p.mu.Unlock()
	}
}

// span is the offsets from first up to, but not including, afterLast.
type span struct{ first, afterLast int64 }

// The ended events beyond the watermark are committed as metadata with the offset, so that the next
// reader skips them. Kafka keeps 4,096 bytes of metadata. Events whose spans do not fit are handed
// out again.
const (
	endedPrefix = "ended:"
	maxEnded    = 1900
)

// endedBeyond lists the spans of ended events beyond the watermark. A dead letter may share the
// offset of the previous event, if undecodable bytes follow that event. An offset has ended when
// everything at it has ended.
func (w *watermark) endedBeyond(limit int) []span {
	var all []span
	last := int64(-1)
	for i := range w.n {
		at := w.ringIndex(i)
		offset := w.after[at] - 1
		if offset <= last || offset < w.next {
			if n := len(all); !w.ended[at] && n > 0 && all[n-1].afterLast > offset {
				all[n-1].afterLast = offset
			}
			continue
		}
		last = offset
		if !w.ended[at] {
			continue
		}
		if n := len(all); n > 0 && all[n-1].afterLast == offset {
			all[n-1].afterLast++
			continue
		}
		if len(all) == limit {
			break
		}
		all = append(all, span{offset, offset + 1})
	}
	return slices.DeleteFunc(all, func(s span) bool { return s.first >= s.afterLast })
}

// encodeEnded writes spans relative to the committed offset.
func encodeEnded(offset int64, spans []span) string {
	if len(spans) == 0 {
		return ""
	}
	var b []byte
	for _, s := range spans {
		grown := binary.AppendUvarint(b, uint64(s.first-offset))
		grown = binary.AppendUvarint(grown, uint64(s.afterLast-s.first))
		if base64.RawStdEncoding.EncodedLen(len(grown)) > maxEnded {
			break
		}
		b, offset = grown, s.afterLast
	}
	return endedPrefix + base64.RawStdEncoding.EncodeToString(b)
}

// decodeEnded reads the output of encodeEnded. For metadata of another kind, or an unreadable part,
// decodeEnded returns no spans. Then no event beyond the offset is known to have ended.
func decodeEnded(offset int64, metadata string) []span {
	text, ours := strings.CutPrefix(metadata, endedPrefix)
	b, err := base64.RawStdEncoding.DecodeString(text)
	if !ours || err != nil {
		return nil
	}
	var all []span
	for len(b) > 0 {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return nil
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 || gap > 1<<exactBits || length == 0 || length > 1<<lifeBits { // a gap may reach into the next life
			return nil
		}
		b = b[n+m:]
		first := offset + int64(gap)
		offset = first + int64(length)
		all = append(all, span{first, offset})
	}
	return all
}

// isCovered reports whether an offset is in one of the sorted spans.
func isCovered(spans []span, offset int64) bool {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].afterLast > offset })
	return i < len(spans) && spans[i].first <= offset
}

// endedSpans returns the spans to commit with the offset: events ended by former readers and by
// this one. The caller holds the partition's lock.
func (p *inPartition) endedSpans() []span {
	all := append(p.mark.endedBeyond(maxEnded), spansFrom(p.ended, p.mark.next)...) // reading may stop within a span
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return all
}

// endedFrom returns the ended spans at or after an offset, which may be below the watermark. The
// caller holds the partition's lock.
func (p *inPartition) endedFrom(offset int64) []span {
	all := spansFrom(p.endedSpans(), offset)
	if offset < p.mark.next {
		all = slices.Insert(all, 0, span{offset, p.mark.next})
	}
	return all
}

// spansFrom cuts the spans to their parts at or after an offset.
func spansFrom(spans []span, from int64) []span {
	var all []span
	for _, s := range spans {
		if s.first = max(s.first, from); s.first < s.afterLast {
			all = append(all, s)
		}
	}
	return all
}

// A note is a text of the caller that is committed with a partition's offset, for the next reader
// of the partition. Kafka keeps 4,096 bytes of metadata, for the note and the spans of ended
// events. If the two do not fit together, only the note is committed, because the spans only save
// work.
//
// The layout is notePrefix, the length of the note, a colon, the note, then the spans, and then the
// life of the stream. A later layout has another prefix.
const (
	notePrefix = "note1:"

	// MaxNote is the largest number of bytes in a note.
	MaxNote = 2000
)

// encodeMetadata writes the metadata that is committed with an offset.
func encodeMetadata(offset int64, note string, spans []span) string {
	ended := encodeEnded(offset, spans)
	if note == "" {
		return ended
	}
	return encodeNote(note) + ended
}

func encodeNote(note string) string { return notePrefix + strconv.Itoa(len(note)) + ":" + note }

// cutNote cuts the note off the metadata of an offset.
func cutNote(metadata string) (note, rest string, noted bool) {
	text, noted := strings.CutPrefix(metadata, notePrefix)
	if !noted {
		return "", metadata, false
	}
	length, rest, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// decodeMetadata reads the output of encodeMetadata, or of encodeEnded as written before notes
// existed. Metadata of another kind gives no note and no spans.
func decodeMetadata(offset int64, metadata string) (note string, spans []span) {
	note, rest, _ := cutNote(metadata)
	ended, _, _ := strings.Cut(rest, lifePrefix)
	return note, decodeEnded(offset, ended)
}

// metadataAt returns the metadata to commit with an offset of the partition; bare leaves out the
// spans of ended events, and the life if the partition is in its first one. The caller holds the lock.
func (p *inPartition) metadataAt(offset int64, bare bool) string {
	var spans []span
	if !bare {
		spans = spansFrom(p.endedSpans(), offset)
	}
	l := p.life.at(offset) // an earlier one, if an event of it has not ended
	metadata := encodeMetadata(offset, p.note, spans)
	if !bare || p.life.base > 0 {
		metadata += l.encode()
	}
	return metadata
}

// errNoteTooLarge means that this Kafka keeps less metadata than Kafka's default.
var errNoteTooLarge = errors.New("the note alone is larger than the metadata that Kafka keeps with an offset; raise its offset.metadata.max.bytes")

func checkNote(text string) error {
	switch {
	case len(text) > MaxNote:
		return fmt.Errorf("it has %d bytes, and %d are allowed: shorten it", len(text), MaxNote)
	case !utf8.ValidString(text):
		return errors.New("it is not valid UTF-8; encode it")
	}
	return nil
}

// Note changes the text that is committed with a partition's offset. The next commit writes it
// within CommitEvery, also if no offset has moved, and every later commit repeats the text. The
// next commit may have an offset from before the events that are Done now. So the text must be true
// for the old and the new offset: call Note before ending the events that the text describes. An
// empty text removes the note. An error means that the partition is not read here, or that the text
// is invalid.
//
// If a transaction with the partition fails, an uncommitted note is forgotten, and Assigned gets
// the committed one.
func (c *Consumer) Note(stream string, partition int32, text string) error {
	p, err := c.notePartition(stream, partition, text)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return fmt.Errorf("note of %s/%d: %w", stream, partition, errTakenAway)
	}
	p.note = text
	return nil
}

// notePartition returns the partition that a note belongs to.
func (c *Consumer) notePartition(stream string, partition int32, text string) (*inPartition, error) {
	err := checkNote(text)
	if c.member == nil {
		err = errors.New("a consumer without a group commits no offset that could carry it")
	}
	if err != nil {
		return nil, fmt.Errorf("note of %s/%d: %w", stream, partition, err)
	}
	c.mu.Lock()
	p := c.parts[wire.TopicPartition{Topic: c.b.names.Topic(stream), Partition: partition}]
	c.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("note of %s/%d: %w", stream, partition, errTakenAway)
	}
	return p, nil
}

// txNote is a note that a transaction commits.
type txNote struct {
	p     *inPartition
	epoch uint64
	text  string
}

// Note commits a text with a partition's offset inside the transaction. The text stays until the
// next note. If the transaction has no delivery of the partition, the transaction commits the
// offset of the partition's first open event. The transaction fails if this consumer does not read
// the partition, or loses it before the offsets are committed. If the transaction fails, the
// partition is read again from its committed offset, as for a delivery. Of several notes for one
// partition the last one counts.
func (x *Tx) Note(stream string, partition int32, text string) {
	p, err := x.t.c.notePartition(stream, partition, text)
	if err != nil {
		x.p.tx.poison(err)
		return
	}
	p.mu.Lock()
	note, gone := txNote{p, p.epoch, text}, p.gone
	p.mu.Unlock()
	if gone {
		x.p.tx.poison(fmt.Errorf("note of %s/%d: %w", stream, partition, errTakenAway))
		return
	}
	if x.notes == nil {
		x.notes = map[wire.TopicPartition]txNote{}
	}
	x.notes[p.tp] = note
}

// annotate adds the transaction's notes to the places that it commits. It adds a place for a
// partition that has a note but no delivery.
func (x *Tx) annotate(places map[wire.TopicPartition]*txPlace) error {
	for tp, n := range x.notes {
		place := places[tp]
		switch {
		case place == nil:
			places[tp] = &txPlace{p: n.p, epoch: n.epoch, note: &n.text}
		case place.p != n.p || place.epoch != n.epoch:
			return fmt.Errorf("note of %s/%d: %w", n.p.stream, tp.Partition, errTakenAway)
		default:
			place.note = &n.text
		}
	}
	return nil
}
