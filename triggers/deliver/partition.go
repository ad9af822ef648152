package deliver

import (
	"hash/maphash"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// plan is which triggers read a stream. It is read only.
type plan struct {
	triggers []string
	// match appends the places in triggers of those that the event matches,
	// each once.
	match func(v *broker.View, dst []int) []int
}

// terms are what the config and people say of the triggers, read only too.
type terms struct {
	plan     *plan
	triggers map[string]*config.Trigger // all there are, whatever they read
	paused   func(trigger string) bool
}

// bounds of a partition.
type bounds struct {
	patience  time.Duration // how long an item may wait in memory
	linger    time.Duration // how long one that must be parked waits for company
	window    int           // events that are read and neither over nor parked
	bytes     int           // of them
	event     int           // of one that is to be parked
	retention time.Duration // of the stream; 0 is for ever
	skew      time.Duration // how much older than another's our config may be
}

func defaultBounds() bounds {
	return bounds{patience: 250 * time.Millisecond, linger: 50 * time.Millisecond, window: 8192, bytes: 16 << 20, event: maxParked - parkedRoom}
}

// partition is all that the dispatcher knows of one partition of a stream: what
// was read and is not over, what is parked, which trigger gets events from
// where on. It decides and does no I/O, and it holds no lock: see shard for
// that. What it wants done stands in its fields:
//
//	out       items to be handed to their senders
//	plan()    what the next transaction shall write
//	load()    records to be read, as far as there is room for them
//
// A partition is made anew by each rebuild, so what comes back for the one
// before finds it closed and changes nothing.
type partition struct {
	home   *shard // whose lock guards it; nil in tests
	stream string
	number int32
	bounds bounds
	terms  *terms

	lines map[string]*line
	reads []planned // as the plan has them
	next  int64     // the source offset behind what was taken

	window  []*slab
	events  int // in the window, not over
	held    int // bytes that they hold, about
	backlog []*slab

	resting  itemHeap
	kept     []*item // parked in passing, and still in memory
	rewrites []*item
	settled  []ending
	writing  *write
	flying   int

	base    int64 // the source offset that it began at
	latest  int64 // where a trigger begins that is new to it, at least
	begun   begun
	begunAt int64  // its offset on the parked log; none before the first
	begunOn moment // when it was written
	tidy    moment // of the last commit
	wanted  *begun // to be written
	heard   hearing
	intake  *intake // to be written
	skewed  moment  // until then the config may be older than begun

	ledger  ledger
	logEnd  int64 // behind the newest record that we know of
	replays replays
	past    uint32 // the replay of a past range that it belongs to; 0 is none, see rangeReplay
	keys    maphash.Seed
	out     []*item
	matched []int
	opened  bool
	paused  bool // nothing is read for now
	missing bool // it has no companion to park in: it waits, see lane.bereave
	stirred bool // a chain is due before those that were
	leaving bool
	closed  bool
}

// planned is a trigger of the plan, ready to be used.
type planned struct {
	line *line
	from int64
}

// newPartition is a partition that holds nothing yet.
func newPartition(stream string, number int32, b bounds, position int64) *partition {
	return &partition{stream: stream, number: number, bounds: b, base: position, next: position, lines: map[string]*line{},
		begun: begun{From: map[string]int64{}}, heard: hearing{open: map[int64]int{}}, begunAt: none, keys: maphash.MakeSeed(), replays: newReplays()}
}

func (p *partition) line(name string) *line {
	l := p.lines[name]
	if l == nil {
		l = &line{part: p, name: name, chains: map[uint64]*chain{}, ages: map[uint32]int32{}}
		if p.terms != nil {
			l.trigger, l.paused = p.terms.triggers[name], p.terms.paused(name)
		}
		p.lines[name] = l
	}
	return l
}

// expiry is when an item has been parked for so long that soon nobody could
// read it any more.
func (p *partition) expiry(r rec) moment {
	if p.bounds.retention == config.Forever {
		return never
	}
	return moment(r.first)*1000 + moment(p.bounds.retention.Milliseconds()/2)
}

// hash is how keys are told apart. Two of one hash merely wait for each other.
func (p *partition) hash(key []byte) uint64 { return maphash.Bytes(p.keys, key) }

// busy tells whether anything is left to be done with what was read.
func (p *partition) busy() bool {
	return len(p.window) > 0 || len(p.backlog) > 0 || len(p.settled) > 0 || len(p.rewrites) > 0 || p.intake != nil || len(p.resting) > 0 || p.writing != nil || p.flying > 0
}

// close makes all that is still under way for it vain.
func (p *partition) close() { p.closed = true }
