package score

import (
	"strconv"
	"strings"
	"sync"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// assignment is a partition of the input for as long as this process reads it without a break.
// When a transaction fails, its partitions are read again under new assignments. The decisions
// of the old assignments do not count.
type assignment struct {
	partition int32
	prefix    string          // prefix of the outputs' ids
	to        int32           // partition of the outputs
	found     *earlierOutputs // outputs of a former owner after the offset; nil once that has been passed
	held      *heldIndex
	before    *assignment // assignment that this one replaces

	// Used by the pipeline only.
	deliveries []*inFlight // deliveries that no transaction has, in order
	versions   map[string]usedVersion
	known      bool      // whether the pipeline has taken over the state of the one before
	own        *inFlight // delivery of events that come from no delivery of the broker
	holding    bool      // whether events may be parked
	ahead      int64     // offset after the last parked event that the group has yet to pass

	// Used by the committer only.
	noted      bool         // whether a note has been committed
	offset     int64        // offset of the group, or a later one
	back       []*heldEvent // parked events that are handled in the present batch
	out        string       // id of the output's topic
	moved      bool         // whether the output was created again, or has lost its end, since out was asked for
	end        int64        // offset from which later outputs are written
	frozen     bool         // whether the offset has not passed all outputs
	from       int64        // the note's from while it is frozen
	live       bool         // whether it has a part in the present batch
	last       int32        // index of its last item with an output
	sent       int64        // offset after that output
	noteSent   func(broker.Receipt)
	notedBatch uint64 // batch of the newest note; used without transactions
}

// inFlight is a delivery that has not ended.
type inFlight struct {
	d       *broker.Delivery // nil for events that were parked
	of      *assignment
	waiting int // number of its events that wait for models

	// Used by the committer only.
	ends    bool   // whether it ends with the present batch at the latest
	letters []item // dead letters that are written when it ends
}

// usedVersion is a version that has scored events, with the first batch.
type usedVersion struct {
	version int
	batch   uint64
	offset  int64 // lowest offset
}

func newAssignment(stream string, partition, to int32) *assignment {
	t := &assignment{partition: partition, to: to, prefix: stream + "/" + strconv.Itoa(int(partition)) + "/", versions: map[string]usedVersion{}}
	t.own = &inFlight{of: t}
	t.noteSent = func(r broker.Receipt) { t.sent = r.Offset + 1 }
	return t
}

// offsetNote returns what is committed next to the offset. The committer calls it.
func (t *assignment) offsetNote() offsetNote {
	n := offsetNote{to: t.to, from: t.end, mark: t.held.returnMark(), out: t.out}
	if t.frozen {
		n.from = t.from
	}
	return n
}

// passed updates the place in the note after a commit. While there are outputs that the group's
// offset has not passed, the place stays where it is, because a successor must find them.
func (t *assignment) passed(end int64, whole bool) {
	t.held.committed(t.offset)
	if end > 0 && end <= t.end { // the outputs may be anywhere
		t.moved, t.end, t.from = true, 0, 0
	}
	if !whole && !t.frozen {
		t.frozen, t.from = true, t.end
	}
	if whole {
		t.frozen = false
	}
	t.noted, t.end = true, max(t.end, end)
}

// assignments holds the assignments that have not ended.
//
// The race: a transaction that fails first calls Assigned for its partitions, and only then do
// their deliveries cease to be current. A lookup between the two would find the new assignment
// for a delivery of the old one. So the new assignment is handed out only after the transaction
// has returned. In all other cases a delivery ceases to be current before Gone, and so before
// the next Assigned: if a lookup finds an assignment and the delivery is current after it, they
// belong together.
type assignments struct {
	mu      sync.Mutex
	settled sync.Cond
	all     map[int32]*assignment
	closing map[int32]bool
	inside  bool   // whether a transaction is under way
	changes uint64 // number of changes
}

func newAssignments() *assignments {
	t := &assignments{all: map[int32]*assignment{}, closing: map[int32]bool{}}
	t.settled.L = &t.mu
	return t
}

// enter notes that a transaction begins.
func (t *assignments) enter() {
	t.mu.Lock()
	t.inside = true
	t.mu.Unlock()
}

// leave records that the transaction has ended. The partitions that it gave up are no longer
// current.
func (t *assignments) leave() {
	t.mu.Lock()
	t.inside = false
	if len(t.closing) > 0 {
		t.changes++
	}
	clear(t.closing)
	t.mu.Unlock()
	t.settled.Broadcast()
}

// closeLookups makes lookups of some partitions wait until the transaction has ended.
func (t *assignments) closeLookups(at []broker.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range at {
		if t.inside && t.all[p.Partition] != nil {
			t.closing[p.Partition] = true
		}
	}
}

func (t *assignments) begin(all []*assignment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range all {
		one.before = t.all[one.partition]
		t.all[one.partition] = one
	}
	t.changes++
}

func (t *assignments) gone(at []broker.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range at {
		delete(t.all, p.Partition)
	}
	t.changes++
}

// assignmentOf returns the assignment of a delivery; nil if the delivery is not current.
func (t *assignments) assignmentOf(d *broker.Delivery) *assignment {
	t.mu.Lock()
	for t.closing[d.Partition] {
		t.settled.Wait()
	}
	one := t.all[d.Partition]
	t.mu.Unlock()
	if one == nil || !d.Current() {
		return nil
	}
	return one
}

// hasEnded reports whether an assignment has ended.
func (t *assignments) hasEnded(one *assignment) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[one.partition] != one
}

// changed returns the present assignments if any has begun or ended since an earlier call.
func (t *assignments) changed(since uint64) (now uint64, all []*assignment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == since {
		return since, nil
	}
	for partition, one := range t.all {
		if !t.closing[partition] {
			all = append(all, one)
		}
	}
	return t.changes, all
}

// earlierOutputs are outputs that a former owner has sent after its committed offset.
// These outputs are read back so that they are not sent again.
//
// An output names its input's position and its cause. Both must be the event's, because
// a log that has lost its end in a crash gives the same offsets to other events.
type earlierOutputs struct {
	prefix string
	causes map[int64]uint32 // hash of the cause, by offset
	last   int64
	floor  int64 // offsets below it count already
}

func newEarlierOutputs(prefix string) *earlierOutputs {
	return &earlierOutputs{prefix: prefix, causes: map[int64]uint32{}, last: -1}
}

// add reads a scorer's output or an event that it has passed on. It returns the event
// that it belongs to, if that is of this partition.
func (f *earlierOutputs) add(source string, v *broker.View) (offset int64, what uint32, mine bool) {
	at, from, id := v.ID, v.Source, v.ID
	if v.Source == source {
		from, _ = v.Attribute(tidemill.AttrCausationSource)
		id, _ = v.Attribute(tidemill.AttrCausationID)
	} else {
		at, _ = strings.CutPrefix(passedBy(v), source+"#")
	}
	text, mine := strings.CutPrefix(at, f.prefix)
	offset, err := strconv.ParseInt(text, 10, 64)
	if !mine || err != nil || offset < f.floor {
		return 0, 0, false
	}
	f.causes[offset] = identity(from, id)
	f.last = max(f.last, offset)
	return offset, f.causes[offset], true
}

// passedHeader is a header of an event that was passed on unchanged: the scorer and the event's
// position. It is not an attribute, so the event stays the same.
const passedHeader = "tidemill-passed"

func passedBy(v *broker.View) string {
	for _, h := range v.Foreign {
		if h.Key == passedHeader {
			return string(h.Value)
		}
	}
	return ""
}

// trim forgets offsets below one, because they count already.
func (f *earlierOutputs) trim(offset int64) {
	for at := range f.causes {
		if at < offset {
			delete(f.causes, at)
		}
	}
}

// hasOutput reports whether an event's output has been found.
func (f *earlierOutputs) hasOutput(v *broker.View, offset int64) bool {
	of, ok := f.causes[offset]
	return ok && of == identity(v.Source, v.ID)
}
