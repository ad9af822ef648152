package score

import (
	"strconv"
	"sync"

	"tidemill.dev/broker"
)

// tenure is a partition of the input for as long as it is read here without a
// break. When a transaction fails, its partitions are read anew, and that is a
// new tenure: nothing that was decided in the old one counts.
type tenure struct {
	partition int32
	prefix    string // of the outputs' ids
	to        int32  // their partition
	found     *found // what a former owner has scored beyond the offset; nil if that has been passed
	held      *held
	before    *tenure // the one that this takes the place of

	// The pipeline's.
	turns    []*turn // deliveries that have not been given to a transaction, in order
	versions map[string]spoken
	known    bool  // the pipeline has taken over what counts of the one before
	own      *turn // of events that come from no delivery
	holding  bool  // something is held, perhaps
	ahead    int64 // behind the last of what was parked and the group has yet to pass

	// The committer's.
	noted  bool         // a note has been committed
	offset int64        // of the group, or behind it
	back   []*heldEvent // in the present batch
	end    int64        // outputs that are sent from now on lie here or behind it
	frozen bool         // the offset has not passed all that has been sent
	from   int64        // what the note says while it is frozen
	live   bool         // in the present batch
	last   int32        // its last item that leaves an output
	sent   int64        // behind that output
	said   uint64       // without transactions: the batch that the note is of
}

// turn is a delivery.
type turn struct {
	d       *broker.Delivery // nil for what was held
	tenure  *tenure
	waiting int // of its events, for models

	// The committer's.
	ends    bool   // with the present batch, at the latest
	letters []item // that are written when it ends
}

// spoken is a version that has scored, since some batch.
type spoken struct {
	version int
	batch   uint64
	offset  int64 // the lowest
}

func newTenure(stream string, partition, to int32) *tenure {
	t := &tenure{partition: partition, to: to, prefix: stream + "/" + strconv.Itoa(int(partition)) + "/", versions: map[string]spoken{}}
	t.own = &turn{tenure: t}
	return t
}

// note is what is committed beside the offset. It is the committer's.
func (t *tenure) note() note {
	n := note{to: t.to, from: t.end, mark: t.held.mark()}
	if t.frozen {
		n.from = t.from
	}
	return n
}

// passed moves the note's place on after a commit. Outputs that the offset has
// not passed must be found by a successor: it stays where it is for them.
func (t *tenure) passed(end int64, whole bool) {
	t.held.committed(t.offset)
	if !whole && !t.frozen {
		t.frozen, t.from = true, t.end
	}
	if whole {
		t.frozen = false
	}
	t.noted, t.end = true, max(t.end, end)
}

// tenures are those that have not ended.
//
// The race: a transaction that fails asks Assigned for its partitions first, and
// only then do their deliveries cease to be current. Who looked a delivery's
// tenure up in between would find the new one and spoil it with what belongs to
// the old. So the new one is handed out only after the transaction has returned.
// Elsewhere a delivery ceases to be current before Gone, and so before the next
// Assigned: who finds a tenure and then the delivery current has the right one.
type tenures struct {
	mu      sync.Mutex
	settled sync.Cond
	all     map[int32]*tenure
	closing map[int32]bool
	inside  bool   // a transaction is under way
	changes uint64 // how often one has ended
}

func newTenures() *tenures {
	t := &tenures{all: map[int32]*tenure{}, closing: map[int32]bool{}}
	t.settled.L = &t.mu
	return t
}

// enter says that a transaction begins.
func (t *tenures) enter() {
	t.mu.Lock()
	t.inside = true
	t.mu.Unlock()
}

// leave says that it has ended, and whatever it gave up is not current any more.
func (t *tenures) leave() {
	t.mu.Lock()
	t.inside = false
	if len(t.closing) > 0 {
		t.changes++
	}
	clear(t.closing)
	t.mu.Unlock()
	t.settled.Broadcast()
}

// close hands out no tenure of some partitions until the transaction has ended.
func (t *tenures) close(at []broker.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range at {
		if t.inside && t.all[p.Partition] != nil {
			t.closing[p.Partition] = true
		}
	}
}

func (t *tenures) begin(all []*tenure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range all {
		one.before = t.all[one.partition]
		t.all[one.partition] = one
	}
	t.changes++
}

func (t *tenures) gone(at []broker.Position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range at {
		delete(t.all, p.Partition)
	}
	t.changes++
}

// of is the tenure of a delivery; nil if the delivery is not current.
func (t *tenures) of(d *broker.Delivery) *tenure {
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

// ended tells whether a tenure has ended.
func (t *tenures) ended(one *tenure) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[one.partition] != one
}

// changed are the tenures that there are, if any has begun or ended since some
// count of changes.
func (t *tenures) changed(since uint64) (now uint64, all []*tenure) {
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
