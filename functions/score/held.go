package score

import (
	"container/heap"
	"log/slog"
	"strings"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// heldIndex is the index of one partition's events that wait for their models on the parked
// stream. Their contents are mostly not in memory, and their places are in a list for each model.
//
// The pipeline decides: it parks events, asks for models, opens those that are loaded, and takes
// their events in the order of each key. The committer writes these decisions into transactions, in
// their order, and reports which are committed. A transaction that fails ends
// the assignment and this index with it; the next owner rebuilds it from the log.
//
// Records of a torn transaction do not count by themselves: see rebuild.
type heldIndex struct {
	b         *broker.Broker
	stream    string
	partition int32
	o         heldOptions

	mu       sync.Mutex
	models   map[string]*heldModel
	keys     map[uint16]int32 // number of waiting events, by the hash of their key
	closed   modelHeap        // models that have not been asked for
	open     modelHeap        // models whose events may be taken
	kept     *contents        // contents of recently parked events
	loaded   *contents        // contents of recently read events
	keeping  int              // bytes of contents that will be in kept, because they are about to be parked
	waiting  int              // number of events that have not been taken
	unparked int              // number of events whose offset on the parked partition is not known yet
	broken   bool             // whether the offset of one will never be known

	needed   parked.Offsets   // offsets on the parked partition that a successor needs
	handled  map[int64]int64  // those of handled events that the group has yet to pass, with their input offsets
	serial   int64            // serial number of the last returned record
	noted    int64            // serial number of the last returned record that counts
	void     []int64          // returned records that do not count and that no other record has declared void
	ahead    map[int64]uint32 // parked input offsets that the group has yet to pass, with the identity of their events
	passed   int64            // the group's offset, or a lower one
	end      int64            // end of the parked partition, as far as it is known
	patience int              // length of the log when a renewal was last not possible
	pinned   string           // model that was last logged because its events cannot be parked again
	owed     []int64          // places of returned events that no record lists yet
	fold     *heldFold        // set during a rebuild
}

// heldOptions have the template of the models' names, and bound the memory besides the index.
type heldOptions struct {
	Model string
	Kept  int // bytes of recently parked events
	Read  int // bytes that are read at once, and kept until the next read
	Renew parked.Renewal
	Log   *slog.Logger
}

func (o heldOptions) withDefaults() heldOptions {
	if o.Model == "" {
		o.Model = "{key}"
	}
	if o.Kept == 0 {
		o.Kept = 2 << 20
	}
	if o.Read == 0 {
		o.Read = 1 << 20
	}
	if o.Renew == (parked.Renewal{}) {
		o.Renew = parked.Renewal{Least: 8 << 10, Share: 4}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// contents are events in memory, by their offsets on the parked partition.
type contents = parked.Cache[int64, *heldEvent]

func newContents() *contents { return parked.NewCache[int64, *heldEvent](0) }

// heldEvent is an event that was parked.
type heldEvent struct {
	heldHeader
	at    int64       // offset on the parked partition; uncommitted until it is known
	model string      // model that it waits for
	view  broker.View // view with separate memory
	err   error       // reason why it can no longer be read; then view and key are empty
	size  int         // 0 if its content is not in memory
	taken bool        // whether it was taken while its offset was not known
}

func (e *heldEvent) ref() parked.Ref { return e.refAt(e.at) }

// heldModel is a model with events that have not been taken, in the order in which they were parked. A list for
// each key would take much more memory, because each event may have its own key.
type heldModel struct {
	name  string
	first parked.Ref   // first parked event; its order is uncommitted if there is none
	later parked.List  // other parked events
	fresh []*heldEvent // events after these that are about to be parked
	state modelState
	at    int // index in its heap
}

type modelState int8

const (
	modelClosed modelState = iota
	modelAsked
	modelOpen
)

// uncommitted is an offset that is not known yet.
const uncommitted = -1

func (k *heldModel) add(r parked.Ref) {
	switch {
	case k.first.Order == uncommitted:
		k.first = r
	case r.Compare(k.first) < 0:
		k.later.Add(k.first)
		k.first = r
	default:
		k.later.Add(r)
	}
}

func openHeld(b *broker.Broker, stream string, partition int32, o heldOptions) *heldIndex {
	return &heldIndex{b: b, stream: stream, partition: partition, o: o.withDefaults(), models: map[string]*heldModel{}, keys: map[uint16]int32{},
		handled: map[int64]int64{}, ahead: map[int64]uint32{}, kept: newContents(), loaded: newContents()}
}

// modelOf returns the name of a key's model; empty if the key names none.
func (h *heldIndex) modelOf(key string) string {
	name, err := modelName(h.o.Model, key)
	if err != nil {
		return ""
	}
	return name
}

// isWaiting reports whether an event of the key is still waiting for its model. Later events of that key must
// then be parked, too. Some keys of a model share a hash. Then both may have to.
func (h *heldIndex) isWaiting(key, model string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.models[model] != nil && h.keys[hashOf(key)] > 0
}

// hashOf has few values, because a count for each key would take memory without bound.
func hashOf(key string) uint16 {
	n := identity(key, "")
	return uint16(n ^ n>>16)
}

// tally counts waiting events in and out.
func (h *heldIndex) tally(hash uint16, n int) {
	h.waiting += n
	if h.keys[hash] += int32(n); h.keys[hash] <= 0 {
		delete(h.keys, hash)
	}
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
func (h *heldIndex) hold(key, model string, v *broker.View, offset, logged int64) *heldEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := &heldEvent{heldHeader: heldHeader{offset: offset, logged: logged, key: key}}
	if size := parked.Size(v); h.kept.Size()+h.keeping+size <= h.o.Kept {
		e.view, e.size = v.Clone(), size
		h.keeping += size
	}
	h.tally(hashOf(key), 1)
	h.expect(h.modelNamed(model), e)
	return e
}

// expect adds an event that is about to be parked.
func (h *heldIndex) expect(k *heldModel, e *heldEvent) {
	e.at, e.model = uncommitted, k.name
	k.fresh = append(k.fresh, e)
	h.unparked++
}

// modelNamed returns a model, and creates it if no event waits for it.
func (h *heldIndex) modelNamed(name string) *heldModel {
	k := h.models[name]
	if k == nil {
		k = &heldModel{name: strings.Clone(name), first: parked.Ref{Order: uncommitted}}
		h.models[k.name] = k
		heap.Push(&h.closed, k)
	}
	return k
}

// add adds an event that is on the parked partition to those of its model.
func (h *heldIndex) add(k *heldModel, r parked.Ref) {
	first := k.first
	if k.add(r); k.first != first {
		h.fix(k)
	}
}

// nextModel returns the model that has been waited for longest, among those that have not been
// requested; false if there is none. The caller then calls unlock or closeModel.
func (h *heldIndex) nextModel() (name string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.closed) == 0 {
		return "", false
	}
	k := heap.Pop(&h.closed).(*heldModel)
	k.state = modelAsked
	return k.name, true
}

// unlock allows to take a model's events.
func (h *heldIndex) unlock(model string) { h.turn(model, modelOpen) }

// closeModel stops the taking of a model's events and has it asked for again.
func (h *heldIndex) closeModel(model string) { h.turn(model, modelClosed) }

func (h *heldIndex) turn(model string, to modelState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.move(h.models[model], to)
}

func (h *heldIndex) move(k *heldModel, to modelState) {
	if k == nil || k.state == to {
		return
	}
	h.leave(k)
	k.state = to
	if q := h.heapOf(k); q != nil {
		heap.Push(q, k)
	}
}

// heapOf returns the heap that has the model; nil if it has been asked for.
func (h *heldIndex) heapOf(k *heldModel) *modelHeap {
	switch k.state {
	case modelOpen:
		return &h.open
	case modelClosed:
		return &h.closed
	}
	return nil
}

// leave removes a model from its heap.
func (h *heldIndex) leave(k *heldModel) {
	if q := h.heapOf(k); q != nil {
		heap.Remove(q, k.at)
	}
}

// fix moves a model in its heap, because its first event has changed.
func (h *heldIndex) fix(k *heldModel) {
	if q := h.heapOf(k); q != nil {
		heap.Fix(q, k.at)
	}
}

// modelHeap orders models by the place of their first event. Those without a parked event come last.
type modelHeap []*heldModel

func (q modelHeap) Len() int           { return len(q) }
func (q modelHeap) Less(i, j int) bool { return uint64(q[i].first.Order) < uint64(q[j].first.Order) }
func (q modelHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i, j
}

// Push implements heap.Interface.
func (q *modelHeap) Push(x any) {
	k := x.(*heldModel)
	k.at = len(*q)
	*q = append(*q, k)
}

// Pop implements heap.Interface.
func (q *modelHeap) Pop() any {
	last := len(*q) - 1
	k := (*q)[last]
	(*q)[last], *q = nil, (*q)[:last]
	return k
}
