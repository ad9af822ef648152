package score

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// assigned begins assignments. It returns when no version can go back: when the table
// of champions has all that the former owner knew, and its outputs have been read back.
func (s *session) assigned(ctx context.Context, at []broker.Position) ([]broker.Position, error) {
	s.assignments.closeLookups(at)
	notes := make([]offsetNote, len(at))
	var facts []int64
	total := int64(0)
	for i, p := range at {
		var err error
		if notes[i], err = parseNote(p.Note); err != nil {
			return nil, fmt.Errorf("stream %s, partition %d: %w", p.Stream, p.Partition, err)
		}
		facts, total = laterOffsets(facts, notes[i].facts), max(total, notes[i].total)
	}
	err := s.o.Champions.Reached(ctx, facts)
	if err == nil && total > 0 {
		err = s.o.Champions.ReachedTotal(ctx, total)
	}
	if err != nil {
		return nil, fmt.Errorf("wait for the champions that its former owner knew: %w", err)
	}
	s.o.Models.Settle()
	now := time.Now() // all canaries that the former owner knew are known
	s.assignedAt.Store(&now)
	all, err := s.beginAt(ctx, at, notes)
	if err != nil {
		return nil, err
	}
	s.assignments.begin(all)
	s.wake.notify(nil)
	return nil, nil
}

// givenUp ends assignments. It notifies the pipeline, because our count of parked events must no
// longer include those of that partition.
func (s *session) givenUp(at []broker.Position) {
	s.assignments.gone(at)
	s.wake.notify(nil)
}

// laterOffsets returns the larger of two offsets for each partition.
func laterOffsets(a, b []int64) []int64 {
	for i, x := range b {
		if i == len(a) {
			a = append(a, x)
		}
		a[i] = max(a[i], x)
	}
	return a
}

// beginAt makes an assignment for each partition and reads its outputs back. The number
// of the output's partitions holds for the whole assignment, because a stream that
// grows must not break a key's order.
func (s *session) beginAt(ctx context.Context, at []broker.Position, notes []offsetNote) ([]*assignment, error) {
	out, err := s.o.Broker.TopicID(ctx, s.conf.To) // before the ends, which must not be those of an older topic
	if err != nil {
		return nil, err
	}
	ends, err := s.o.Broker.Ends(ctx, s.conf.To)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", s.conf.To, err)
	}
	all := make([]*assignment, len(at))
	for i, p := range at {
		to := p.Partition % int32(len(ends))
		all[i] = newAssignment(s.conf.From, p.Partition, to)
		all[i].noted = notes[i].committed && notes[i].to == to
		all[i].end, all[i].out = ends[to].Offset, out
		if broker.IsOtherTopic(notes[i].out, out) {
			notes[i].from = 0
		}
	}
	if err := s.rebuild(ctx, at, notes, all); err != nil {
		return nil, err
	}
	if !s.conf.AtLeastOnce {
		err = s.readBack(ctx, at, notes, all, int32(len(ends)))
	}
	for _, t := range all {
		t.held.endRebuild()
		t.ahead = t.held.aheadTo()
	}
	return all, err
}

// rebuild finds the parked events of each partition.
func (s *session) rebuild(ctx context.Context, at []broker.Position, notes []offsetNote, all []*assignment) error {
	if err := s.reportDeleted(ctx, notes, all); err != nil {
		return err
	}
	for i, t := range all {
		t.offset = at[i].Offset
		o := s.o.held
		o.Model, o.Log = s.conf.Model, s.log
		t.held = openHeld(s.o.Broker, tidemill.ScorerParked(s.conf.Name), t.partition, o)
		if err := t.held.rebuild(ctx, notes[i].mark, t.offset); err != nil {
			return err
		}
	}
	return nil
}

// reportDeleted writes a dead letter for each partition whose parked events were deleted while they waited. That
// happens if no scorer runs for longer than the retention. The offset after the mark may be that of a transaction
// marker. A repeated dead letter has the same id.
func (s *session) reportDeleted(ctx context.Context, notes []offsetNote, all []*assignment) error {
	if !slices.ContainsFunc(notes, func(n offsetNote) bool { return n.mark.waits }) {
		return nil
	}
	stream := tidemill.ScorerParked(s.conf.Name)
	starts, err := s.o.Broker.Places(ctx, stream, broker.Earliest())
	if err != nil {
		return fmt.Errorf("look at where %s begins: %w", stream, err)
	}
	for i, t := range all {
		from := broker.Position{Stream: stream, Partition: t.partition, Offset: notes[i].mark.at}
		if !notes[i].mark.waits || int(t.partition) >= len(starts) || starts[t.partition].Offset <= from.Offset+1 {
			continue
		}
		s.log.Warn("scorer: events were deleted while they waited for their models; a dead letter names their offsets", "scorer", s.conf.Name,
			"stream", stream, "partition", t.partition, "offset", from.Offset)
		if err := s.publishMissing(ctx, from, starts[t.partition].Offset-1); err != nil {
			return fmt.Errorf("write the dead letter of deleted events of %s/%d: %w", stream, t.partition, err)
		}
	}
	return nil
}

// publishMissing writes the dead letter of parked events that were deleted. No transaction can begin before the
// partition is assigned.
func (s *session) publishMissing(ctx context.Context, from broker.Position, last int64) error {
	v, err := s.missingDeadLetter(from, last, errAllGone)
	if err != nil {
		return err
	}
	p, err := s.o.Broker.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	_, err = p.Publish(ctx, tidemill.StreamDeadLetters, &v)
	return errors.Join(err, p.Close(ctx))
}

// readBack finds the outputs that were sent since the notes were written. Without a
// note there are none, because a note is committed before the first output. A partition
// that a recreated output stream does not have is skipped, too.
func (s *session) readBack(ctx context.Context, at []broker.Position, notes []offsetNote, all []*assignment, partitions int32) error {
	places := map[int32]int64{} // offsets by partition of the output
	of := map[int32][]*assignment{}
	for i, t := range all {
		n := notes[i]
		if !n.committed || n.to >= partitions {
			continue
		}
		t.found = newEarlierOutputs(t.prefix)
		if from, known := places[n.to]; !known || n.from < from {
			places[n.to] = n.from
		}
		of[n.to] = append(of[n.to], t)
	}
	var from []broker.Position
	for partition, offset := range places {
		from = append(from, broker.Position{Stream: s.conf.To, Partition: partition, Offset: offset})
	}
	stopped, err := s.o.Broker.ReadBack(ctx, from, func(e *broker.Incoming) {
		for _, t := range of[e.Position().Partition] {
			if offset, what, mine := t.found.add(s.source, &e.View); mine {
				t.held.scored(offset, what)
			}
		}
	})
	if err != nil {
		return err
	}
	ends := stopped[:0]
	for i, p := range stopped {
		if p.Offset > from[i].Offset { // the log may end before the note's place
			ends = append(ends, p)
		}
	}
	for i, t := range all {
		t.resume(at[i].Offset, notes[i], ends)
	}
	return nil
}

// resume sets where outputs go on. While there are found outputs that the offset has
// not passed, the note stays where it was and outputs go to the partition that it
// names, because it can name only one.
func (t *assignment) resume(offset int64, n offsetNote, ends []broker.Position) {
	if t.found == nil {
		return
	}
	if t.found.trim(offset); len(t.found.causes) == 0 {
		t.found = nil
	} else {
		t.frozen, t.from, t.to, t.noted = true, n.from, n.to, true
	}
	for _, p := range ends {
		if p.Partition == t.to {
			t.end = p.Offset
		}
	}
}

// offsetNote is committed next to a partition's offset. The note has all that the next owner must
// know before scoring.
type offsetNote struct {
	facts     []int64 // places among the facts at which the versions were known; nil if total is set
	total     int64   // sum of these places, if there are too many for a note
	to        int32   // partition of the output
	from      int64   // offset from which the outputs of events at the group's offset or later are
	mark      heldMark
	out       string // id of the output's topic; empty if it is not known
	committed bool   // whether there is a note
}

// notePrefix and totalPrefix name the layouts: with the places among the facts, and with
// their sum. An unknown layout is an error, because it may contain something that must not
// be lost.
const (
	notePrefix  = "scorer1:"
	totalPrefix = "scorer2:"

	// mostFacts is the room for the places: a note without the largest other parts. These are four numbers of ten
	// bytes at most and one of one byte, in base64, an id, and two colons.
	mostFacts = broker.MaxNote - len(notePrefix) - 55 - 18 - 2
)

// sharedFacts is the part of a note that all partitions of a batch share.
type sharedFacts struct {
	prefix, text string
}

// factsText encodes the places among the facts. A stream of facts may have thousands of
// partitions, whose places do not fit into a note. Then the note has their sum. The next
// owner then waits for everything that is on the stream, which includes those places.
func factsText(places []int64) sharedFacts {
	b := binary.AppendUvarint(nil, uint64(len(places)))
	total := int64(0)
	for _, p := range places {
		b = binary.AppendVarint(b, p)
		total += p
	}
	if base64.RawStdEncoding.EncodedLen(len(b)) > mostFacts {
		return sharedFacts{totalPrefix, base64.RawStdEncoding.EncodeToString(binary.AppendVarint(nil, total))}
	}
	return sharedFacts{notePrefix, base64.RawStdEncoding.EncodeToString(b)}
}

// text encodes a note; facts comes from factsText.
func (n offsetNote) text(facts sharedFacts) string {
	waits := int64(0)
	if n.mark.waits {
		waits = 1
	}
	var own [4*binary.MaxVarintLen64 + 1]byte
	b := binary.AppendVarint(own[:0], int64(n.to))
	b = binary.AppendVarint(b, n.from)
	b = binary.AppendVarint(b, n.mark.at)
	b = binary.AppendVarint(b, n.mark.serial)
	b = binary.AppendVarint(b, waits)
	var room [256]byte // each transaction has a note for each partition
	all := append(room[:0], facts.prefix...)
	all = append(base64.RawStdEncoding.AppendEncode(all, b), ':')
	all = append(append(all, facts.text...), ':')
	return string(append(all, n.out...))
}

// parseNote decodes a note. An empty text is no note.
func parseNote(text string) (offsetNote, error) {
	if text == "" {
		return offsetNote{mark: noMark}, nil
	}
	rest, known := strings.CutPrefix(text, notePrefix)
	onlyTotal := false
	if !known {
		rest, onlyTotal = strings.CutPrefix(text, totalPrefix)
		known = onlyTotal
	}
	own, rest, whole := strings.Cut(rest, ":")
	facts, out, _ := strings.Cut(rest, ":") // an earlier version writes no id
	if !known || !whole {
		return offsetNote{}, fmt.Errorf("the note next to the offset, %.40q, is of another version of Tidemill: run that version, or reset the group's offsets", text)
	}
	places, err := varints(own, false)
	if err == nil && len(places) == 4 {
		places = append(places, 0) // an earlier version has written it
	}
	if err != nil || len(places) != 5 {
		return offsetNote{}, fmt.Errorf("the note next to the offset, %.40q, cannot be read: %w", text, errors.Join(err, errNote))
	}
	n := offsetNote{to: int32(places[0]), from: places[1], mark: heldMark{places[2], places[3], places[4] != 0}, out: out, committed: true}
	all, err := varints(facts, !onlyTotal)
	if err == nil && onlyTotal && len(all) != 1 {
		err = errNote
	}
	if err != nil {
		return offsetNote{}, fmt.Errorf("the note next to the offset, %.40q, cannot be read: %w", text, err)
	}
	if onlyTotal {
		n.total = all[0]
	} else {
		n.facts = all
	}
	return n, nil
}

var errNote = errors.New("reset the group's offsets; later events may then be scored again")

// varints decodes numbers, which may begin with their count.
func varints(text string, counted bool) ([]int64, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	want := -1
	if counted {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)) {
			return nil, errNote
		}
		b, want = b[size:], int(n)
	}
	var all []int64
	for len(b) > 0 {
		x, size := binary.Varint(b)
		if size <= 0 {
			return nil, errNote
		}
		all, b = append(all, x), b[size:]
	}
	if want >= 0 && want != len(all) {
		return nil, errNote
	}
	return all, nil
}

// Waits decodes the note next to a partition's offset and reports whether parked events wait for
// their models. The parked partition's end includes the marker of the last transaction.
func Waits(text string, parkedEnd int64) (bool, error) {
	n, err := parseNote(text)
	return err == nil && n.committed && n.mark.at != uncommitted && parkedEnd > n.mark.at+1, err
}
