package score

import (
	"slices"
	"sync/atomic"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/infer"
)

// batch is what goes through the pipeline at once. Its memory is used again.
type batch struct {
	seq    uint64
	began  time.Time
	stamp  []byte // the time as an attribute
	facts  string // of the notes
	items  []item
	order  []int32 // indices of items, by group
	groups []group
	units  []unit
	next   atomic.Int32 // unit to be computed
	arenas [][]byte     // what workers have written
	parts  []part
	ends   []*turn
	drops  []*broker.Delivery // whose tenure has ended: for their memory's sake
	swaps  []swap
	bytes  int
	events int

	left   atomic.Int32 // outputs that have no answer yet, without transactions
	failed atomic.Bool
	told   func(broker.Receipt, error)
}

// item is an event on its way.
type item struct {
	v       *broker.View
	offset  int64
	logged  int64 // milliseconds
	since   time.Time
	turn    *turn
	key     *keyed
	held    *heldEvent // it has been parked, and comes back
	seq     uint64     // of what is parked
	reason  error
	group   int32
	verdict verdict
	worker  uint8
	from    uint32 // in the worker's arena
	to      uint32
}

// verdict is what becomes of an event.
type verdict uint8

const (
	scoring    verdict = iota // its group is to be computed
	scored                    // the output is in an arena
	passedOver                // it is not meant for the scorer
	passed                    // it goes to the output as it came
	dropped
	dead    // with a reason
	skipped // a former owner has dealt with it
	waiting // in a later batch
	parked
	lost // its tenure has ended: it comes again, here or elsewhere
	verdicts
)

// group is the items of one model.
type group struct {
	target *target
	model  *infer.Model // nil if none answers
	does   verdict      // what becomes of its items without
	reason error
	first  int32 // in the batch's order
	n      int32
	plan   *plan

	ref     *infer.Ref // what has answered
	version string
}

// part is a tenure's part of a batch.
type part struct {
	tenure *tenure
	turn   *turn // some delivery of it, if there is any, to ask whether it is current
	next   int64 // behind the last delivery that ends; 0 if none does
	live   bool  // the tenure has not ended
	whole  bool  // all of the tenure's deliveries end with this batch
}

func (b *batch) reset(seq uint64) {
	b.seq, b.began, b.bytes, b.events = seq, time.Time{}, 0, 0
	clear(b.items) // they hold on to deliveries
	clear(b.groups)
	clear(b.parts)
	clear(b.ends)
	clear(b.drops)
	clear(b.swaps)
	b.items, b.order, b.groups, b.units, b.parts = b.items[:0], b.order[:0], b.groups[:0], b.units[:0], b.parts[:0]
	b.ends, b.drops, b.swaps = b.ends[:0], b.drops[:0], b.swaps[:0]
	for i := range b.arenas {
		b.arenas[i] = b.arenas[i][:0]
	}
}

// empty tells whether there is nothing to commit.
func (b *batch) empty() bool {
	return len(b.items) == 0 && len(b.ends) == 0 && len(b.drops) == 0
}

// idle tells whether nothing follows from the batch: all of it waits.
func (b *batch) idle() bool {
	return len(b.ends) == 0 && !slices.ContainsFunc(b.items, func(it item) bool { return it.verdict != waiting })
}

// join adds an item to its model's group.
func (b *batch) join(it *item, t *target) {
	if t.batch != b.seq {
		t.batch, t.group = b.seq, int32(len(b.groups))
		b.groups = append(b.groups, group{target: t})
	}
	it.group = t.group
	b.groups[t.group].n++
}

// sort puts the items that are to be scored in order, by group and within it as
// they came.
func (b *batch) sort() {
	at := int32(0)
	for i := range b.groups {
		b.groups[i].first = at
		at += b.groups[i].n
		b.groups[i].n = 0
	}
	if cap(b.order) < int(at) {
		b.order = make([]int32, at, 2*at)
	}
	b.order = b.order[:at]
	for i := range b.items {
		if it := &b.items[i]; it.verdict == scoring {
			g := &b.groups[it.group]
			b.order[g.first+g.n] = int32(i)
			g.n++
		}
	}
}

// of are the indices of a group's items.
func (b *batch) of(g *group) []int32 { return b.order[g.first : g.first+g.n] }

// release gives the models back.
func (b *batch) release() {
	for i := range b.groups {
		if m := b.groups[i].model; m != nil {
			m.Release()
			b.groups[i].model = nil
		}
	}
}
