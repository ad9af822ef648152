package outcomes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/triggers/deadletters"
)

// output holds the events of the next transaction. They are copies, so they outlive what they are made of.
type output struct {
	names   tidemill.Names
	match   *matcher
	answers string // stream of the answers
	labels  string // stream of the labels
	now     func() time.Time

	outcomes, letters []broker.View
	memory            []byte // of one outcome's data
}

// text returns bytes as text without a copy.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (o *output) clear() { o.outcomes, o.letters = o.outcomes[:0], o.letters[:0] }

func (o *output) size() int { return len(o.outcomes) + len(o.letters) }

// source is the source of the outcomes.
func (o *output) source() string { return sourceOf(o.names, o.match.scorer) }

func sourceOf(names tidemill.Names, scorer string) string {
	return names.Source("outcomes/" + scorer)
}

// outcome adds the outcome of an answer. Without a label its truth is the one that the config assumes. Its record key is the
// key of the model, so that all outcomes of a key are in one partition.
func (o *output) outcome(a *answer, l *label, before string) {
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
	o.outcomes = append(o.outcomes, v.Clone())
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

// group is the name of the consumer group in dead letters.
func group(scorer string) string { return "outcomes." + scorer }

// dead adds the dead letter of a label.
func (o *output) dead(at position, v *broker.View, reason string) error {
	letter, err := deadletters.New(o.names, broker.Position{Stream: o.labels, Partition: at.partition, Offset: at.offset}, v,
		deadletters.Details{Letter: group(o.match.scorer), Group: group(o.match.scorer), Reason: reason}, o.now())
	if err != nil {
		return err
	}
	o.addLetter(&letter)
	return nil
}

// lost adds a dead letter for offsets that cannot be read.
func (o *output) lost(stream string, partition int32, from, last int64, record *broker.DeadRecord, reason string) error {
	place := broker.Position{Stream: stream, Partition: partition, Offset: from}
	body, err := json.Marshal(broker.DeadLetter{Stream: stream, Partition: partition, Offset: from, Last: max(from, last), Group: group(o.match.scorer), Reason: reason, Record: record})
	if err != nil {
		return fmt.Errorf("write the dead letter of %s: %w", place.Place(), err)
	}
	letter := broker.View{ID: tidemill.ID("dead-letter", group(o.match.scorer), place.Place(), strconv.FormatInt(last, 10)), Type: tidemill.TypeEventDeadLettered,
		Time: o.now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: body}
	o.addLetter(&letter)
	return nil
}

// addLetter adds a dead letter. Neither a trigger nor a scorer can take its event again; the correction of a label is
// another label.
func (o *output) addLetter(v *broker.View) {
	v.Source = o.source()
	v.Extensions = slices.DeleteFunc(v.Extensions, func(x broker.Attribute) bool { return x.Name == tidemill.AttrTrigger })
	o.letters = append(o.letters, v.Clone())
}
