package outcomes

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
)

// joiner decides which outcomes and dead letters follow from answers, labels and the time. It does no I/O except
// on its index, and the times are those at which events reached the log. So a later owner that reads the same logs
// decides the same.
//
// A label counts for an answer if neither reached the log more than wait before the other. An answer that
// has no outcome after that time gets the truth that the config names.
type joiner struct {
	match   *matcher
	index   *index
	out     *output
	wait    int64  // in milliseconds
	missing string // truth of an answer without a label; empty means none

	// forgotten reports whether the key of an answer was forgotten after the answer.
	forgotten func(key string, at position) (bool, error)

	// forgets returns a time in milliseconds. The index drops entries whose members are all older.
	forgets func() int64

	// replaying is true while the index is rebuilt. Outcomes and dead letters of these events are written already.
	replaying bool
	// torn has outcomes that are on the log, while the offsets of their transaction are not: the embedded Kafka
	// was killed while it ended the transaction. They are not written again.
	torn map[string][]written
	// lettered has the labels that have not expired and whose dead letters are on the log.
	lettered map[position]bool
	// replayed and expired are the offsets up to which this owner's predecessors had read the labels, and up to which these
	// had expired, by partition.
	replayed, expired []int64

	crowded bool  // whether a value had too many answers or labels since this was last logged
	e       entry // memory that each call uses again
	n       counts
}

// written is an outcome that is on the log.
type written struct {
	revision            int
	truth               string
	labelID, labelOwner string // id and source of the label; empty if the truth was assumed
}

// counts are numbers of one call chain, which the metrics add up.
type counts struct {
	answers, labels, joined, assumed, corrected, repeated, late, unmatched, unreadable, forgotten, crowded uint64
}

// mostMembers bounds the answers and the waiting labels of one match value, because a whole entry is read and written for
// each of them. Further answers get their outcome when their wait is over.
const mostMembers = 100

// relation says how a label and an answer are related in time.
type relation int8

const (
	stranger relation = iota // the label is for an event of another source, or is older than the answer by more than wait
	inTime
	tooLate
)

func (j *joiner) relate(l *label, a *answer) relation {
	switch {
	case l.of != "" && l.of != a.view.causeSource || l.at+j.wait < a.at:
		return stranger
	case a.at+j.wait < l.at:
		return tooLate
	}
	return inTime
}

// load reads the entry of a match value into j.e.
func (j *joiner) load(h *hash) error {
	j.e.newest, j.e.labels, j.e.answers = 0, j.e.labels[:0], j.e.answers[:0]
	b, err := j.index.get(h)
	if err != nil || b == nil {
		return err
	}
	return j.e.read(b)
}

func (j *joiner) store(h *hash, at int64) {
	j.e.newest = max(j.e.newest, min(at, j.out.now().UnixMilli())) // a record of the future would keep the entry for ever
	j.index.put(h, &j.e)
}

// answer takes an event of the stream of answers.
func (j *joiner) answer(v *broker.View, at position, ms int64) error {
	if !j.match.isAnswer(v) {
		return nil
	}
	j.n.answers++
	a := answer{position: at, at: ms}
	a.view.readAnswer(v)
	value := j.match.answerValue(&a.view)
	if value == "" {
		return nil // no label can name it
	}
	h := hashOf(value)
	if err := j.load(&h); err != nil {
		return err
	}
	if j.e.answerOf(a.view.id) != nil { // the scorer has written it twice; the second one has to be known until it expires
		j.store(&h, ms)
		return nil
	}
	if len(j.e.answers) >= mostMembers {
		before := j.forgets()
		j.e.answers = slices.DeleteFunc(j.e.answers, func(a answer) bool { return a.at < before })
	}
	if len(j.e.answers) >= mostMembers {
		j.n.crowded++
		j.crowded = true
		return nil
	}
	gone := false
	if len(j.e.labels) > 0 {
		var err error
		if gone, err = j.isForgotten(&a); err != nil {
			return err
		}
	}
	j.adopt(&a)
	for i := range j.e.labels {
		l := &j.e.labels[i]
		if gone || j.relate(l, &a) != inTime {
			continue // expireLabel says so
		}
		if err := j.join(l, &a); err != nil {
			return err
		}
		l.used = true
	}
	j.e.labels = newestUsed(j.e.labels)
	j.e.answers = append(j.e.answers, a)
	j.store(&h, ms)
	return nil
}

// newestUsed removes all used labels but the last.
func newestUsed(all []label) []label {
	kept, seen := len(all), false
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].used && seen {
			continue
		}
		seen = seen || all[i].used
		kept--
		all[kept] = all[i]
	}
	return append(all[:0], all[kept:]...)
}

// label takes an event of the stream of labels.
func (j *joiner) label(v *broker.View, at position, ms int64) error {
	if !j.match.isLabel(v) {
		return nil
	}
	j.n.labels++
	l := label{position: at, at: ms}
	value, err := j.match.readLabel(v, &l)
	if err != nil {
		j.n.unreadable++
		return j.dead(at, v, err.Error())
	}
	h := hashOf(value)
	if err := j.load(&h); err != nil {
		return err
	}
	if j.replaying && slices.ContainsFunc(j.e.labels, func(old label) bool { return old.position == at && old.id == l.id }) {
		return nil // the index has it
	}
	found, gone, err := j.give(&l)
	switch {
	case err != nil:
		return err
	case found == inTime:
		l.used = true
		if gone {
			return j.dead(at, stripped(v), keyForgotten)
		}
		j.e.labels = newestUsed(append(j.e.labels, l))
	case j.lettered[at] || j.replaying && at.isBefore(j.expired): // it waits no longer
	case j.replaying: // it waited for an answer when it was read
		j.e.labels = append(j.e.labels, l)
	case found == tooLate && j.match.of.Field == "": // a field may have a later answer
		if err := j.dead(at, v, j.lateReason()); err != nil {
			return err
		}
		j.n.late++
	case len(j.e.labels) >= mostMembers:
		j.n.crowded++
		j.crowded = true
		return j.dead(at, v, fmt.Sprintf("%d earlier labels wait for the same answer", mostMembers))
	default:
		j.e.labels = append(j.e.labels, l)
	}
	j.store(&h, ms)
	return nil
}

// give gives a label to the answers of the loaded entry. gone reports whether all of them belong to forgotten keys.
func (j *joiner) give(l *label) (found relation, gone bool, err error) {
	joined := false
	for i := range j.e.answers {
		a := &j.e.answers[i]
		r := j.relate(l, a)
		if r == inTime {
			forgotten, err := j.isForgotten(a)
			if err != nil {
				return 0, false, err
			}
			gone = gone || forgotten
			if !forgotten {
				joined = true
				if err := j.join(l, a); err != nil {
					return 0, false, err
				}
			}
		}
		if r == inTime || found == stranger {
			found = r
		}
	}
	return found, gone && !joined, nil
}

// join gives an answer the truth of a label, unless it has this truth already.
func (j *joiner) join(l *label, a *answer) error {
	switch {
	case j.replaying: // the outcome on the log says which truth the answer has
		return nil
	case a.revision > 0 && a.truth == l.truth:
		j.n.repeated++
		return nil
	case j.hasWritten(a, l):
		return nil
	}
	count := &j.n.joined
	if a.revision > 0 {
		count = &j.n.corrected
	}
	return j.publish(a, l, l.truth, count)
}

// publish writes the next revision of an answer's outcome, and counts it. If its texts do not fit into one event, the answer
// keeps its truth.
func (j *joiner) publish(a *answer, l *label, truth string, count *uint64) error {
	next := *a
	next.revision, next.truth = a.revision+1, truth
	if bytes := j.out.outcome(&next, l, a.truth); bytes > 0 {
		j.n.unreadable++
		return j.out.tooLarge(a, l, bytes)
	}
	*a = next
	*count++
	return nil
}

func (j *joiner) isForgotten(a *answer) (bool, error) {
	if j.replaying {
		return false, nil
	}
	gone, err := j.forgotten(j.match.keyOf(&a.view), a.position)
	if gone {
		j.n.forgotten++
	}
	return gone, err
}

// adopt gives an answer the outcomes that a torn transaction has written for it.
func (j *joiner) adopt(a *answer) {
	for _, w := range j.torn[a.view.id] {
		if w.revision > a.revision {
			a.revision, a.truth = w.revision, w.truth
		}
	}
}

// hasWritten reports whether a torn transaction has written the outcome of an answer with a label.
func (j *joiner) hasWritten(a *answer, l *label) bool {
	for _, w := range j.torn[a.view.id] {
		if w.labelID == l.id && w.labelOwner == l.source && w.labelID != "" {
			return true
		}
	}
	return false
}

func (j *joiner) lateReason() string {
	return fmt.Sprintf("too late: the label reached its stream more than %s after the answer; a longer `wait` of the scorer's labels would have joined it", showWait(j.wait))
}

// dead writes the dead letter of a label, unless it is on the log.
func (j *joiner) dead(at position, v *broker.View, reason string) error {
	if j.replaying || j.lettered[at] {
		return nil
	}
	return j.out.dead(at, v, reason)
}

const keyForgotten = "the key of its answer was forgotten; the label's data is left out"

// stripped returns a label's event without its data.
func stripped(v *broker.View) *broker.View {
	return &broker.View{ID: v.ID, Source: v.Source, Type: v.Type, Time: v.Time}
}

// expireAnswer takes an answer again after all labels that were in time have been read.
func (j *joiner) expireAnswer(v *broker.View, at position, ms int64) error {
	// Without a field each input has its own value, so an entry has room for all its answers.
	if j.missing == "" && j.match.of.Field == "" || !j.match.isAnswer(v) {
		return nil
	}
	fresh := answer{position: at, at: ms}
	fresh.view.readAnswer(v)
	value := j.match.answerValue(&fresh.view)
	h := hashOf(value)
	var a *answer
	var err error
	if value != "" {
		if err := j.load(&h); err != nil {
			return err
		}
		a = j.e.answerOf(fresh.view.id)
	}
	known := a != nil
	if !known { // no label could find it, or too many share its match value
		a = &fresh
		j.adopt(a)
	}
	if a.revision > 0 {
		return nil
	}
	if gone, err := j.isForgotten(a); gone || err != nil {
		return err
	}
	var l *label
	if !known && value != "" { // without a value no entry is loaded
		l = j.lastInTime(a)
	}
	switch {
	case l != nil:
		err, l.used = j.publish(a, l, l.truth, &j.n.joined), true
	case j.missing != "":
		err = j.publish(a, nil, j.missing, &j.n.assumed)
	}
	if known || l != nil {
		j.store(&h, ms)
	}
	return err
}

// lastInTime returns the last label of the loaded entry that is for an answer; nil if none is.
func (j *joiner) lastInTime(a *answer) *label {
	for i := range slices.Backward(j.e.labels) {
		if l := &j.e.labels[i]; j.relate(l, a) == inTime {
			return l
		}
	}
	return nil
}

// expireLabel takes a label again after all answers for which it was in time have been read.
func (j *joiner) expireLabel(v *broker.View, at position, ms int64) error {
	if !j.match.isLabel(v) {
		return nil
	}
	l := label{position: at, at: ms}
	value, err := j.match.readLabel(v, &l)
	switch {
	case err != nil && at.isBefore(j.replayed):
		return j.dead(at, v, err.Error()+". It was read before these settings changed, and may have an outcome of that time")
	case err != nil:
		return nil // it became a dead letter when it was read
	}
	h := hashOf(value)
	if err := j.load(&h); err != nil {
		return err
	}
	found := stranger
	for i := range j.e.answers {
		if r := j.relate(&l, &j.e.answers[i]); r == inTime || found == stranger {
			found = r
		}
	}
	waits := j.e.waiting(at)
	if waits < 0 {
		return nil // it was joined or repeated, or became a dead letter when it was read
	}
	j.e.labels = slices.Delete(j.e.labels, waits, waits+1)
	j.store(&h, ms)
	switch found {
	case inTime: // it came before its answers, and their key was forgotten before they were read
		return j.dead(at, stripped(v), keyForgotten)
	case tooLate:
		j.n.late++
		return j.dead(at, v, j.lateReason())
	}
	j.n.unmatched++
	return j.dead(at, v, fmt.Sprintf("no answer of scorer %s has %s, neither %s before the label nor %s after it", j.match.scorer, j.match.shows(value), showWait(j.wait), showWait(j.wait)))
}

// The places of an outcome's data.
var (
	truthPath, basisPath         = []string{"truth"}, []string{"basis"}          // read-only
	labelledPath, labelIDPath    = []string{"labelled"}, []string{"labelId"}     // read-only
	labelSourcePath, revisedPath = []string{"labelSource"}, []string{"revision"} // read-only
)

// nowhere is the position of a label that is only known from an outcome. The label itself is read later, unless it is gone.
var nowhere = position{-1, -1} // read-only

var errNoRevision = errors.New("its revision is no number")

// outcome takes an outcome that this scorer's owners have written. It is called while the index is rebuilt, after the
// answers and before the labels. maybeTorn says that the outcome may be of a transaction without offsets.
func (j *joiner) outcome(v *broker.View, maybeTorn bool) error {
	place, _, _ := strings.Cut(v.ID, "#")
	revision, err := strconv.Atoi(jsonscan.TextAt(v.Data, revisedPath))
	if err != nil {
		return errNoRevision
	}
	truth, labelID, labelSource := jsonscan.TextAt(v.Data, truthPath), jsonscan.TextAt(v.Data, labelIDPath), jsonscan.TextAt(v.Data, labelSourcePath)
	remember := func() {
		place := strings.Clone(place)
		j.torn[place] = append(j.torn[place], written{revision, strings.Clone(truth), strings.Clone(labelID), strings.Clone(labelSource)})
	}
	if maybeTorn {
		remember()
	}
	var view answerView
	view.readAnswer(v)
	view.id = place
	value := j.match.answerValue(&view)
	if value == "" {
		return nil
	}
	h := hashOf(value)
	if err := j.load(&h); err != nil {
		return err
	}
	a := j.e.answerOf(place)
	switch {
	case a == nil && !maybeTorn && len(j.e.answers) >= mostMembers:
		remember() // its answer had room in the entry then, or it has expired
		return nil
	case a == nil || a.revision >= revision:
		return nil
	}
	a.revision, a.truth = revision, truth
	if basis := tidemill.OutcomeBasis(jsonscan.TextAt(v.Data, basisPath)); basis != tidemill.OutcomeAssumed {
		when := jsonscan.TextAt(v.Data, labelledPath)
		j.e.labels = newestUsed(append(j.e.labels, label{position: nowhere, at: readTime(when, a.at).UnixMilli(), used: true, person: basis == tidemill.OutcomeSaid, truth: truth,
			id: labelID, source: labelSource, time: when}))
	}
	j.store(&h, 0)
	return nil
}
