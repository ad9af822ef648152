package score

import (
	"container/heap"
	"sync"

	"tidemill.dev/broker"
)

// held are the events of one partition that wait for their models on the parked
// stream, beside which only an index of them is in memory.
//
// The pipeline decides: it holds events, asks for keys' models, opens the keys
// whose models have come, and takes their events, each key's in order. The
// committer writes what was decided into transactions, in the order of the
// decisions, and says which have been committed. A transaction that fails ends the
// tenure, and what is held with it: the next owner rebuilds it from the log.
//
// What is on the log of a transaction that was torn does not count by itself:
// see rebuild.
type held struct {
	b         *broker.Broker
	stream    string
	partition int32
	o         heldOptions

	mu      sync.Mutex
	log     heldLog
	keys    map[string]*heldKey
	closed  keyHeap // nobody has asked for their models
	open    keyHeap // their events may be taken
	kept    shelf   // contents of what was parked lately
	loaded  shelf   // contents of what was read lately
	waiting int     // events that have not been taken

	serial   int64            // of the last returned record
	noted    int64            // of the last that counts
	void     []int64          // returned records that do not count, and that no record has said so of
	ahead    map[int64]uint32 // input offsets that the group has yet to pass, by what is there
	passed   int64            // the group's offset is this or beyond it
	end      int64            // of the parked partition, as far as it is known here
	patience int              // how long the log was when nothing could be parked anew
	owed     []int64          // places of events that were returned, which no record has said yet
	fold     *heldFold        // while it is rebuilt
}

// heldOptions bound what is in memory besides the index.
type heldOptions struct {
	Kept int // bytes of events, from when they are parked
	Read int // bytes that are read at once, and kept until others are
	// Renew is how many entries the index has at least before events are parked anew.
	Renew int
	// Share is how many times as long as what waits the index must be for that.
	Share int
}

func (o heldOptions) withDefaults() heldOptions {
	if o.Kept == 0 {
		o.Kept = 2 << 20
	}
	if o.Read == 0 {
		o.Read = 1 << 20
	}
	if o.Renew == 0 {
		o.Renew = 8 << 10
	}
	if o.Share == 0 {
		o.Share = 4
	}
	return o
}

// heldEvent is an event that was held.
type heldEvent struct {
	view   broker.View // its own memory
	key    string
	offset int64 // of the input
	logged int64 // milliseconds, when it reached the input
	err    error // it cannot be read any more; view has nothing then

	seq  uint64
	size int
}

// heldKey is a key that has events to be taken.
type heldKey struct {
	name       string
	head, tail uint64 // sequence numbers
	state      keyState
	at         int // in its heap
}

type keyState int8

const (
	keyClosed keyState = iota
	keyAsked
	keyOpen
)

func openHeld(b *broker.Broker, stream string, partition int32, o heldOptions) *held {
	return &held{b: b, stream: stream, partition: partition, o: o.withDefaults(), keys: map[string]*heldKey{}, ahead: map[int64]uint32{}}
}

// waits tells whether an event of the key has yet to be taken, so that a later
// one must be held, too.
func (h *held) waits(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keys[key] != nil
}

// count is how many events wait.
func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting
}

// seen tells whether an event that is read from the input was parked already, by
// an owner whose offset did not come to count. It is not to be dealt with again.
func (h *held) seen(v *broker.View, offset int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	what, is := h.ahead[offset]
	return is && what == identity(v.Source, v.ID)
}

// identity tells events apart that a log gave the same offset, having lost its end
// in between.
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

// hold decides that an event waits. What it returns is for park.
func (h *held) hold(key string, v *broker.View, offset, logged int64) (seq uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq = h.log.add(heldEntry{at: uncommitted, from: offset, what: identity(v.Source, v.ID)})
	k := h.append(key, seq)
	if size := sizeOf(v); h.kept.size+size <= h.o.Kept {
		h.kept.put(&heldEvent{view: v.Clone(), key: k.name, offset: offset, logged: logged, seq: seq, size: size})
	}
	return seq
}

// append puts an entry behind those of its key.
func (h *held) append(key string, seq uint64) *heldKey {
	h.waiting++
	k := h.keys[key]
	if k == nil {
		k = &heldKey{name: string([]byte(key)), head: seq, tail: seq}
		h.keys[k.name] = k
		heap.Push(&h.closed, k)
		return k
	}
	h.log.of(k.tail).next = uint32(seq - k.tail)
	k.tail = seq
	return k
}

// ask is the key that has waited longest of those whose models nobody has asked
// for; false if there is none. It is asked for from now on: open it, or close it.
func (h *held) ask() (key string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.closed) == 0 {
		return "", false
	}
	k := heap.Pop(&h.closed).(*heldKey)
	k.state = keyAsked
	return k.name, true
}

// unlock has a key's events taken from now on.
func (h *held) unlock(key string) { h.turn(key, keyOpen) }

// close has nobody take a key's events, and its model asked for again.
func (h *held) close(key string) { h.turn(key, keyClosed) }

func (h *held) turn(key string, to keyState) {
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

// leave takes a key out of the heap that it is in.
func (h *held) leave(k *heldKey) {
	switch k.state {
	case keyOpen:
		heap.Remove(&h.open, k.at)
	case keyClosed:
		heap.Remove(&h.closed, k.at)
	}
}

// keyHeap has the key first whose next event is the oldest.
type keyHeap []*heldKey

func (q keyHeap) Len() int           { return len(q) }
func (q keyHeap) Less(i, j int) bool { return q[i].head < q[j].head }
func (q keyHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push is heap.Interface's.
func (q *keyHeap) Push(x any) {
	k := x.(*heldKey)
	k.at = len(*q)
	*q = append(*q, k)
}

// Pop is heap.Interface's.
func (q *keyHeap) Pop() any {
	last := len(*q) - 1
	k := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return k
}
