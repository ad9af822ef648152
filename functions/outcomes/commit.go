package outcomes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/broker/parked"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/triggers/deadletters"
)

// marks are the offsets that the group has, by partition. The offset of a stream that is read is how far it was read, and
// its note is how far it has expired. That of the outcomes is where outcomes of a torn transaction may begin.
type marks map[partition]mark

type partition struct {
	stream string
	number int32
}

type mark struct{ offset, expired int64 }

// commit writes the outputs and the offsets in one transaction.
func (s *session) commit(ctx context.Context, now bool) error {
	s.moveRead()
	if s.out.size() == 0 && !now && !s.index.isFull() && time.Since(s.committed) < markEvery {
		return nil
	}
	if err := s.passOthers(ctx); err != nil {
		return err
	}
	all, full := s.now(), time.Since(s.markedAll) >= markAll
	changed := marks{}
	for p, m := range all {
		if old, ok := s.marked[p]; full || !ok || old != m {
			changed[p] = m
		}
	}
	if s.out.size() == 0 && len(changed) == 0 {
		return nil
	}
	if err := s.transact(ctx, changed); err != nil {
		return err
	}
	s.marked, s.committed = all, time.Now()
	if full {
		s.markedAll = s.committed
	}
	s.metrics.add(s)
	if s.join.crowded && time.Since(s.told) >= tellEvery {
		s.join.crowded, s.told = false, time.Now()
		further := "get none, because labels match without a field and missing is not set"
		if s.join.missing != "" || s.join.match.of.Field != "" {
			further = "get their outcome when their wait is over"
		}
		s.Logger.Warn("outcomes: more than 100 answers or waiting labels have the same match value; further answers "+further+", and further labels are dead letters", "scorer", s.Config.Name)
	}
	s.out.clear()
	if err := s.crash("committed"); err != nil {
		return err
	}
	return s.tidy()
}

// passOthers moves the offsets of the outcomes past those of other scorers, which would count as the lag of this group. No
// transaction of ours is open, so all our outcomes before the ends are committed.
func (s *session) passOthers(ctx context.Context) error {
	if time.Since(s.passed) < passEvery {
		return nil
	}
	ends, err := s.Broker.Ends(ctx, tidemill.StreamOutcomes)
	if err != nil {
		return err
	}
	s.passed = time.Now()
	for _, p := range ends {
		if int(p.Partition) < len(s.written) {
			s.written[p.Partition] = max(s.written[p.Partition], p.Offset)
		}
	}
	return nil
}

// now returns the offsets to mark.
func (s *session) now() marks {
	m := marks{}
	for _, in := range []*input{s.answers, s.labels} {
		for i := range in.read {
			m[partition{in.stream, int32(i)}] = mark{in.read[i], in.done[i]}
		}
	}
	for i, offset := range s.written {
		m[partition{tidemill.StreamOutcomes, int32(i)}] = mark{offset, 0}
	}
	return m
}

// transact runs the transaction, again after an abort. An unclear outcome ends the session, because only the log knows it.
func (s *session) transact(ctx context.Context, changed marks) error {
	backoff := retry.Backoff{First: 50 * time.Millisecond, Cap: 5 * time.Second, Jitter: 0.5}
	for {
		if err := s.crash("before"); err != nil {
			return err
		}
		after := map[int32]int64{}
		err := s.x.Do(ctx, func(tx *broker.ExclusiveTx) error { return s.fill(ctx, tx, changed, after) })
		if err == nil {
			for partition, offset := range after {
				s.written[partition] = max(s.written[partition], offset)
			}
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, broker.ErrSuperseded) || errors.Is(err, broker.ErrInDoubt) || errors.Is(err, errCrash) {
			return err
		}
		pause := backoff.Next()
		s.Logger.Warn("outcomes: a transaction failed; retrying", "scorer", s.Config.Name, "reason", err, "after", pause)
		if retry.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// errCrash is the error of tests that end a session within a transaction.
var errCrash = errors.New("the test ends the session")

func (s *session) fill(ctx context.Context, tx *broker.ExclusiveTx, changed marks, after map[int32]int64) error {
	for i := range s.out.outcomes {
		v := &s.out.outcomes[i]
		partition := broker.PartitionOf(v.Key, len(s.written))
		tx.SendTo(ctx, tidemill.StreamOutcomes, partition, v, func(r broker.Receipt) {
			after[partition] = max(after[partition], r.Offset+1)
		})
	}
	for i := range s.out.letters {
		tx.Send(ctx, tidemill.StreamDeadLetters, &s.out.letters[i])
	}
	if err := s.crash("within"); err != nil {
		return err
	}
	for p, m := range changed {
		tx.Mark(Group(s.Config.Name), broker.Position{Stream: p.stream, Partition: p.number, Offset: m.offset, Note: strconv.FormatInt(m.expired, 10)})
	}
	return nil
}

// tidy writes a full table to disk and drops what is too old. It is called after a commit, when the table holds the
// logs up to the committed offsets.
func (s *session) tidy() error {
	if !s.index.isFull() {
		return nil
	}
	if err := s.index.seal(s.settings, s.places()); err != nil {
		return err
	}
	if err := s.crash("sealed"); err != nil {
		return err
	}
	return s.index.drop(s.forgets(), s.settings)
}

// forgets returns a time. Entries whose members are all older are dropped.
func (s *session) forgets() int64 { return s.oldestWaiting() - keepFor*s.join.wait }

// places returns the offsets up to which the index has the logs.
func (s *session) places() places {
	return places{clone(s.answers.read), clone(s.labels.read), clone(s.written)}
}

// keepFor is how many times the wait of the labels the index keeps an entry: a label may come a wait after its answer,
// and must be recognised as known until it expires itself, a wait later.
const keepFor = 2

// output holds the events of the next transaction. They are copies, so they outlive what they are made of.
type output struct {
	names   tidemill.Names
	match   *matcher
	answers string // stream of the answers
	labels  string // stream of the labels
	now     func() time.Time

	outcomes, letters []broker.View
	bytes             int    // of all of them
	memory            []byte // of one outcome's data
}

// text returns bytes as text without a copy.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (o *output) clear() { o.outcomes, o.letters, o.bytes = o.outcomes[:0], o.letters[:0], 0 }

func (o *output) size() int { return len(o.outcomes) + len(o.letters) }

func (o *output) isFull() bool { return o.size() >= mostOutputs || o.bytes >= mostBytes }

// source is the source of the outcomes.
func (o *output) source() string { return sourceOf(o.names, o.match.scorer) }

func sourceOf(names tidemill.Names, scorer string) string {
	return names.Source("outcomes/" + scorer)
}

// outcome adds the outcome of an answer. Without a label its truth is the one that the config assumes. Its record key is the
// key of the model, so that all outcomes of a key are in one partition. An outcome that is too large for its stream is not
// added, and its size is returned.
func (o *output) outcome(a *answer, l *label, before string) (tooLarge int) {
	v := broker.View{ID: a.view.id, Source: o.source(), Type: tidemill.TypeOutcome, Subject: a.view.subject, Time: o.now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeOutcome), Key: []byte(o.match.keyOf(&a.view))}
	if a.revision > 1 {
		v.Type, v.DataSchema = tidemill.TypeOutcomeCorrected, tidemill.Schema(tidemill.TypeOutcomeCorrected)
		v.ID += "#" + strconv.Itoa(a.revision)
	}
	ext := [...]broker.Attribute{{Name: tidemill.AttrScorer, Value: o.match.scorer}, {Name: tidemill.AttrModel, Value: a.view.model},
		{Name: tidemill.AttrModelVersion, Value: a.view.version}, {Name: tidemill.AttrCausationID, Value: a.view.causeID},
		{Name: tidemill.AttrCausationSource, Value: a.view.causeSource}, {Name: tidemill.AttrLabelField, Value: a.view.field}, {Name: tidemill.AttrLabelGroup, Value: a.view.group}}
	v.Extensions = slices.DeleteFunc(ext[:], func(x broker.Attribute) bool { return x.Value == "" })
	o.memory = o.appendData(o.memory[:0], a, l, before)
	v.Data = o.memory
	bytes := parked.Size(&v)
	if bytes > mostSent {
		return bytes
	}
	o.bytes += bytes
	o.outcomes = append(o.outcomes, v.Clone())
	return 0
}

// mostSent is the size limit of an outcome. Kafka would refuse a larger one, and with it the whole transaction, again
// and again.
const mostSent = 1<<20 - 16<<10

// tooLarge adds the dead letter of a label whose outcome is too large; without a label, or if its place is not known, that of
// the answer.
func (o *output) tooLarge(a *answer, l *label, bytes int) error {
	stream, at, with := o.answers, a.position, ""
	if l != nil {
		with = fmt.Sprintf(" with the label %.100q of %.100q, whose truth has %d bytes,", l.id, l.source, len(l.truth))
		if l.position != nowhere {
			stream, at = o.labels, l.position
		}
	}
	place := broker.Position{Stream: o.answers, Partition: a.partition, Offset: a.offset}
	return o.lost(stream, at.partition, at.offset, at.offset, nil, fmt.Sprintf(
		"the outcome of the answer at %s%s has %d bytes, which is too large for its stream; at most %d are possible. Publish shorter texts", place.Place(), with, bytes, mostSent))
}

// appendData appends tidemill.OutcomeData as JSON. The members of the answer's data (label, score, scores) are copied as
// they are.
func (o *output) appendData(dst []byte, a *answer, l *label, before string) []byte {
	text := func(name, value string) {
		if value != "" {
			dst = append(append(append(dst, ',', '"'), name...), '"', ':')
			dst = jsontensor.AppendText(dst, value)
		}
	}
	when := func(name string, at time.Time) {
		dst = append(append(append(dst, ',', '"'), name...), '"', ':', '"')
		dst = append(at.AppendFormat(dst, time.RFC3339Nano), '"')
	}
	dst = jsontensor.AppendText(append(dst, `{"scorer":`...), o.match.scorer)
	text("key", o.match.keyOf(&a.view))
	text("model", a.view.model)
	version, _ := strconv.Atoi(a.view.version) // the scorer has written a number
	dst = strconv.AppendInt(append(dst, `,"version":`...), int64(version), 10)
	text("place", a.view.id)
	text("answer", broker.Position{Stream: o.answers, Partition: a.partition, Offset: a.offset}.Place())
	text("group", a.view.group)
	if inner := membersOf(a.view.data); inner != "" {
		dst = append(append(dst, ','), inner...)
	}
	text("truth", a.truth)
	text("before", before)
	basis := tidemill.OutcomeAssumed
	if l != nil {
		if basis = tidemill.OutcomeLabelled; l.person {
			basis = tidemill.OutcomeSaid
		}
		when("labelled", readTime(l.time, l.at))
		text("labelId", l.id)
		text("labelSource", l.source)
	}
	text("basis", string(basis))
	dst = strconv.AppendInt(append(dst, `,"revision":`...), int64(a.revision), 10)
	when("answered", readTime(a.view.time, a.at))
	return append(dst, '}')
}

// membersOf returns the members of a JSON object; empty if the text is none.
func membersOf(object string) string {
	object = strings.TrimSpace(object)
	if len(object) < 2 || object[0] != '{' || !jsonscan.ValidInside([]byte(object), 1) {
		return ""
	}
	return strings.TrimSpace(object[1 : len(object)-1])
}

// readTime reads an event's time. Without a valid one it is the time at which the event reached the log.
func readTime(attribute string, ms int64) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, attribute); err == nil {
		return at.UTC()
	}
	return time.UnixMilli(ms).UTC()
}

func showWait(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return strconv.Itoa(int(d/day)) + "d"
	}
	text := d.String()
	if cut, ok := strings.CutSuffix(text, "m0s"); ok {
		text = cut + "m"
	}
	if cut, ok := strings.CutSuffix(text, "h0m"); ok {
		text = cut + "h"
	}
	return text
}

// Group is the consumer group of a scorer's outcomes.
func Group(scorer string) string { return "outcomes." + scorer }

// dead adds the dead letter of a label.
func (o *output) dead(at position, v *broker.View, reason string) error {
	letter, err := deadletters.New(o.names, broker.Position{Stream: o.labels, Partition: at.partition, Offset: at.offset}, v,
		deadletters.Details{Letter: Group(o.match.scorer), Group: Group(o.match.scorer), Reason: reason}, o.now())
	if err != nil {
		return err
	}
	o.addLetter(&letter)
	return nil
}

// lost adds a dead letter for offsets that cannot be read.
func (o *output) lost(stream string, partition int32, from, last int64, record *broker.DeadRecord, reason string) error {
	place := broker.Position{Stream: stream, Partition: partition, Offset: from}
	body, err := json.Marshal(broker.DeadLetter{Stream: stream, Partition: partition, Offset: from, Last: max(from, last), Group: Group(o.match.scorer), Reason: reason, Record: record})
	if err != nil {
		return fmt.Errorf("write the dead letter of %s: %w", place.Place(), err)
	}
	letter := broker.View{ID: tidemill.ID("dead-letter", Group(o.match.scorer), place.Place(), strconv.FormatInt(last, 10)), Type: tidemill.TypeEventDeadLettered,
		Time: o.now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: body}
	o.addLetter(&letter)
	return nil
}

// addLetter adds a dead letter. Neither a trigger nor a scorer can take its event again; the correction of a label is
// another label.
func (o *output) addLetter(v *broker.View) {
	v.Source = o.source()
	v.Extensions = slices.DeleteFunc(v.Extensions, func(x broker.Attribute) bool { return x.Name == tidemill.AttrTrigger })
	o.bytes += parked.Size(v)
	o.letters = append(o.letters, v.Clone())
}
