package deliver

import (
	"sync/atomic"

	"tidemill.dev/broker"
)

// stage is where an item in memory stands.
type stage uint8

const (
	waiting stage = iota // for its predecessor's end
	ready                // to be sent
	flying               // an attempt is under way
	resting              // until its next attempt, which is soon
	parking              // its next attempt is far off: to be parked, or parked anew
	evicted              // only its record is left
	over                 // delivered, or its dead letter is written
)

// arrival is an event in memory, shared by the items that it has become.
type arrival struct {
	view  broker.View // its own copy
	slab  *slab       // nil once it is parked, or if it was read from where it was parked
	at    int         // in the slab
	open  int         // of its items
	unfit string      // why it cannot be parked; empty if it can

	logged moment // when it reached the log; of a parked one, when it was parked first
}

// item is an event on its way to one trigger.
type item struct {
	part  *partition
	chain *chain
	event *arrival
	rec   rec
	stage stage

	until moment // how long it may wait in memory
	due   moment // of the next attempt
	first moment // when it was parked first; 0 if it was not
	must  bool   // be parked, and is counted by its slab

	past    []Attempt   // how it went so far; never changed, only replaced
	tries   int         // attempts made, which may be more than past tells
	written int         // tries that its record knows of
	parked  bool        // it was read from where it was parked
	replay  string      // the act that asked for it, of a replayed dead letter
	letter  string      // that dead letter
	expired bool        // it was parked for too long
	lost    string      // why its record cannot be read; then it has no event to send
	gone    atomic.Bool // only its record is left, which its sender may learn late
}

// rec is an item's record on the parked log. There may be millions.
type rec struct {
	source int64
	at     int64  // offset on the parked log; none while it is not written
	first  uint32 // when it was parked first, in seconds
	replay uint32 // which replay it belongs to; 0 is none
}

const none int64 = -1

// before orders a chain's items.
func (r rec) before(o rec) bool {
	if r.source != o.source {
		return r.source < o.source
	}
	return r.replay < o.replay
}

func (r rec) same(o rec) bool { return r.source == o.source && r.replay == o.replay }

func (i *item) recorded() bool { return i.rec.at != none }

// slab is a delivery of the source, as far as it is not over. Slabs leave the
// window in order: because all their items are over, or because they were
// parked.
type slab struct {
	events []broker.Incoming
	next   int64     // the offset behind it
	end    func(int) // says that an event is over
	// stale tells whether the slab was read before its partition was read anew,
	// and discard gives it away then. Both may be nil.
	stale    func() bool
	discard  func()
	delivery *broker.Delivery // what a transaction ends; nil in tests
	bytes    int

	born   moment
	items  []*item
	open   int    // events that are not over
	must   int    // items that must be parked
	unfit  int    // that cannot be, and are not over
	since  moment // when the first of them had to
	frozen bool   // a transaction is parking it, and alone may end its events
}

// keepInHistory bounds what is told of a long struggle: how it began, and how
// it went last.
const keepInHistory = 10

// remember adds an attempt.
func (i *item) remember(a Attempt) {
	i.tries++
	grown := make([]Attempt, 0, len(i.past)+1)
	grown = append(grown, i.past...)
	if len(grown) == 2*keepInHistory {
		grown = append(grown[:keepInHistory], grown[keepInHistory+1:]...)
	}
	i.past = append(grown, a)
}
