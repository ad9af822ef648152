package score

import (
	"container/heap"
	"sort"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// heldIndex is the index of one partition's events that wait for their models on the parked
// stream. Their contents are mostly not in memory.
//
// The pipeline decides: it parks events, asks for the models of keys, opens keys whose models are
// loaded, and takes their events in the order of each key. The committer writes these decisions
// into transactions, in their order, and reports which are committed. A transaction that fails ends
// the assignment and this index with it; the next owner rebuilds it from the log.
//
// Records of a torn transaction do not count by themselves: see rebuild.
type heldIndex struct {
	b         *broker.Broker
	stream    string
	partition int32
	o         heldOptions

	mu      sync.Mutex
	log     heldLog
	keys    map[string]*heldKey
	closed  keyHeap   // keys whose models have not been asked for
	open    keyHeap   // keys whose events may be taken
	kept    *contents // contents of recently parked events
	loaded  *contents // contents of recently read events
	waiting int       // number of events that have not been taken

	serial   int64            // serial number of the last returned record
	noted    int64            // serial number of the last returned record that counts
	void     []int64          // returned records that do not count and that no other record has declared void
	ahead    map[int64]uint32 // parked input offsets that the group has yet to pass, with the identity of their events
	passed   int64            // the group's offset, or a lower one
	end      int64            // end of the parked partition, as far as it is known
	patience int              // length of the log when a renewal was last not possible
	owed     []int64          // places of returned events that no record lists yet
	fold     *heldFold        // set during a rebuild
}

// heldOptions bound the memory besides the index.
type heldOptions struct {
	Kept  int // bytes of recently parked events
	Read  int // bytes that are read at once, and kept until the next read
	Renew parked.Renewal
}

func (o heldOptions) withDefaults() heldOptions {
	if o.Kept == 0 {
		o.Kept = 2 << 20
	}
	if o.Read == 0 {
		o.Read = 1 << 20
	}
	if o.Renew == (parked.Renewal{}) {
		o.Renew = parked.Renewal{Least: 8 << 10, Share: 4}
	}
	return o
}

// contents are events in memory, by their entries' sequence numbers.
type contents = parked.Cache[uint64, *heldEvent]

func newContents() *contents { return parked.NewCache[uint64, *heldEvent](0) }

// heldEvent is an event that was parked.
type heldEvent struct {
	view   broker.View // view with separate memory
	key    string
	offset int64 // offset on the input
	logged int64 // time when it reached the input, in milliseconds
	err    error // reason why it can no longer be read; then view is empty

	seq  uint64
	size int
}

// heldKey is a key with events that have not been taken.
type heldKey struct {
	name       string
	head, tail uint64 // sequence numbers of its first and last event
	state      keyState
	at         int // index in its heap
}

type keyState int8

const (
	keyClosed keyState = iota
	keyAsked
	keyOpen
)

func openHeld(b *broker.Broker, stream string, partition int32, o heldOptions) *heldIndex {
	return &heldIndex{b: b, stream: stream, partition: partition, o: o.withDefaults(), keys: map[string]*heldKey{}, ahead: map[int64]uint32{},
		kept: newContents(), loaded: newContents()}
}

// isWaiting reports whether an event of the key is still waiting. Later events of that key must
// then be parked, too.
func (h *heldIndex) isWaiting(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys[key] != nil
}

// count returns the number of waiting events.
func (h *heldIndex) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// seen reports whether an event of the input is already parked by an owner whose offset
// was not committed. Such an event is skipped.
func (h *heldIndex) seen(v *broker.View, offset int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	what, is := h.ahead[offset]
	return is && what == identity(v.Source, v.ID)
}

// identity distinguishes events that have the same offset because a log has lost its
// end in between.
func identity(source, id string) uint32 {
	const prime = 16777619
	n := uint32(2166136261)
	for _, s := range [...]string{source, "\x00", id} {
		for i := range len(s) {
			n = (n ^ uint32(s[i])) * prime
		}
	}
	return n
}

// hold decides that an event is parked. The result is for park.
func (h *heldIndex) hold(key string, v *broker.View, offset, logged int64) (seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq = h.log.add(heldEntry{at: uncommitted, from: offset, what: identity(v.Source, v.ID)})
	k := h.append(key, seq)
	if size := parked.Size(v); h.kept.Size()+size <= h.o.Kept {
		h.kept.Put(seq, &heldEvent{view: v.Clone(), key: k.name, offset: offset, logged: logged, seq: seq, size: size}, size)
	}
	return seq
}

// append adds an entry to the end of its key.
func (h *heldIndex) append(key string, seq uint64) *heldKey {
	h.waiting++
	k := h.keys[key]
	if k == nil {
		k = &heldKey{name: string([]byte(key)), head: seq, tail: seq}
		h.keys[k.name] = k
		heap.Push(&h.closed, k)
		return k
	}
	h.log.entryAt(k.tail).next = uint32(seq - k.tail)
	k.tail = seq
	return k
}

// nextModelKey returns the key that has waited longest, among keys whose models have not been
// requested; false if there is none. The caller then calls unlock or close.
func (h *heldIndex) nextModelKey() (key string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.closed) == 0 {
		return "", false
	}
	k := heap.Pop(&h.closed).(*heldKey)
	k.state = keyAsked
	return k.name, true
}

// unlock allows to take a key's events.
func (h *heldIndex) unlock(key string) { h.turn(key, keyOpen) }

// closeKey stops the taking of a key's events and has its model asked for again.
func (h *heldIndex) closeKey(key string) { h.turn(key, keyClosed) }

func (h *heldIndex) turn(key string, to keyState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.keys[key]
	if k == nil || k.state == to {
		return
	}
	h.leave(k)
	if k.state = to; to == keyOpen {
		heap.Push(&h.open, k)
	} else {
		heap.Push(&h.closed, k)
	}
}

// leave removes a key from its heap.
func (h *heldIndex) leave(k *heldKey) {
	switch k.state {
	case keyOpen:
		heap.Remove(&h.open, k.at)
	case keyClosed:
		heap.Remove(&h.closed, k.at)
	}
}

// keyHeap orders keys by their oldest event.
type keyHeap []*heldKey

func (q keyHeap) Len() int           { return len(q) }
func (q keyHeap) Less(i, j int) bool { return q[i].head < q[j].head }
func (q keyHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *keyHeap) Push(x any) {
	k := x.(*heldKey)
	k.at = len(*q)
	*q = append(*q, k)
}

// Pop implements heap.Interface.
func (q *keyHeap) Pop() any {
	last := len(*q) - 1
	k := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return k
}

// heldEntry is the index entry of a parked event. There may be a million of them.
type heldEntry struct {
	at    int64  // offset on the parked partition; uncommitted until it is known
	from  int64  // offset on the input
	next  uint32 // distance to the key's next entry; 0 if there is none
	what  uint32 // identity of the event
	state heldState
	copy  uint16 // number of earlier copies of the event; see renew
}

const uncommitted = -1

type heldState uint8

const (
	heldWaiting heldState = iota
	heldTaken
	heldReturned // handled, or a record that does not count
)

// heldLog has the entries in the order in which they were parked, which is the order of
// their offsets. Their sequence numbers never change. It grows and shrinks by blocks,
// so that it uses only the memory that it needs.
type heldLog struct {
	blocks [][]heldEntry
	first  uint64 // sequence number of the first entry
	begun  uint64 // sequence number of the first entry of the first block
	behind uint64 // sequence number after the last entry
}

const heldBlock = 1024

func (l *heldLog) len() int { return int(l.behind - l.first) }

func (l *heldLog) add(e heldEntry) (seq uint64) {
	n := len(l.blocks)
	if n == 0 || len(l.blocks[n-1]) == heldBlock {
		l.blocks = append(l.blocks, make([]heldEntry, 0, heldBlock))
		n++
	}
	l.blocks[n-1] = append(l.blocks[n-1], e)
	l.behind++
	return l.behind - 1
}

// entryAt returns the entry of a sequence number in the log.
func (l *heldLog) entryAt(seq uint64) *heldEntry {
	i := seq - l.begun
	return &l.blocks[i/heldBlock][i%heldBlock]
}

// drop removes the first entry.
func (l *heldLog) drop() {
	if l.first++; l.first-l.begun == heldBlock {
		l.blocks[0] = nil
		l.blocks = l.blocks[1:]
		l.begun = l.first
	}
}

// find returns the sequence number of the entry at an offset of the parked partition.
func (l *heldLog) find(at int64) (seq uint64, ok bool) {
	i := sort.Search(l.len(), func(i int) bool {
		e := l.entryAt(l.first + uint64(i))
		return e.at == uncommitted || e.at >= at
	})
	seq = l.first + uint64(i)
	return seq, i < l.len() && l.entryAt(seq).at == at
}
