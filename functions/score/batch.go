package score

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// batch is a set of events that goes through the pipeline together. Its memory is reused.
type batch struct {
	seq     uint64
	began   time.Time
	stamp   []byte      // present time, as an attribute
	facts   sharedFacts // facts of the notes
	items   []item
	order   []int32 // indexes of items, by group
	groups  []group
	units   []unit
	next    atomic.Int32 // next unit to be computed
	arenas  [][]byte     // outputs of the workers
	filled  atomic.Int64 // bytes in the arenas
	parts   []batchPart
	ends    []*inFlight
	foreign []*broker.Delivery // deliveries whose assignment has ended; they are ended to free their memory
	swaps   []swap
	bytes   int
	events  int

	left   atomic.Int32 // outputs that are not acknowledged yet, without transactions
	failed atomic.Bool
	told   func(broker.Receipt, error)
}

// item is an event in a batch.
type item struct {
	v        *broker.View
	offset   int64
	logged   int64 // time in milliseconds
	since    time.Time
	delivery *inFlight
	key      *keyEntry
	held     *heldEvent // the event, if it was parked and comes back
	parks    *heldEvent // the event, if it is to be parked
	reason   error
	group    int32
	verdict  verdict
	worker   uint8
	from     uint32 // position in the worker's arena
	to       uint32
}

// verdict is what happens to an event.
type verdict uint8

const (
	scoring    verdict = iota // its group is to be computed
	scored                    // the output is in an arena
	passedOver                // not for this scorer
	passed                    // goes to the output unchanged
	dropped
	dead    // becomes a dead letter, with a reason
	skipped // a former owner has handled it
	waiting // comes in a later batch
	postponed
	lost // its assignment has ended; it comes again, here or elsewhere
	verdicts
)

// group is the items of one model.
type group struct {
	target *target
	model  *infer.Model // nil if there is none
	does   verdict      // verdict of its items if there is no model
	reason error
	first  int32 // index in the batch's order
	n      int32
	plan   *plan

	canary  bool       // whether the model is the canary of its target
	shares  int32      // index of the group of the target's canary; 0 if there is none
	ref     *infer.Ref // version that has answered
	version string
}

// batchPart is an assignment's part of a batch.
type batchPart struct {
	of    *assignment
	from  *inFlight // any delivery of the assignment, to check whether it is current; may be nil
	next  int64     // offset after the last delivery that ends; 0 if none does
	live  bool      // whether the assignment has not ended
	whole bool      // whether all of the assignment's deliveries end with this batch
}

func (b *batch) reset(seq uint64) {
	b.seq, b.began, b.bytes, b.events = seq, time.Time{}, 0, 0
	clear(b.items) // because they refer to deliveries
	clear(b.groups)
	clear(b.parts)
	clear(b.ends)
	clear(b.foreign)
	clear(b.swaps)
	b.items, b.order, b.groups, b.units, b.parts = b.items[:0], b.order[:0], b.groups[:0], b.units[:0], b.parts[:0]
	b.ends, b.foreign, b.swaps = b.ends[:0], b.foreign[:0], b.swaps[:0]
	for i := range b.arenas {
		b.arenas[i] = b.arenas[i][:0]
	}
}

// isEmpty reports whether there is nothing to commit.
func (b *batch) isEmpty() bool {
	return len(b.items) == 0 && len(b.ends) == 0 && len(b.foreign) == 0
}

// idle reports whether all of the batch waits, so that it has no results.
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

// sort orders the items to be scored by group, and within a group by arrival.
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

// itemsOf returns the indexes of the items in a group.
func (b *batch) itemsOf(g *group) []int32 { return b.order[g.first : g.first+g.n] }

// release releases the models.
func (b *batch) release() {
	for i := range b.groups {
		if m := b.groups[i].model; m != nil {
			m.Release()
			b.groups[i].model = nil
		}
	}
}

const (
	// unitRows is how many events a model scores at once: enough to share its weights,
	// and few enough that all cores end at about the same time.
	unitRows = 256
	// alone is the number of events that one core scores while another core starts a worker.
	alone = 48
	// unitBytes is about how many bytes the answers of a unit have, so that a batch that becomes full has few
	// answers after the first that has to wait.
	unitBytes = 256 << 10
)

// unit is some items of one group.
type unit struct {
	group int32
	first int32 // index in the batch's order
	n     int32
}

// compute scores the batch on all cores.
func (s *session) compute(b *batch) {
	b.divide()
	b.next.Store(0)
	b.filled.Store(0)
	n := min(len(b.units), len(s.workers))
	if len(b.order) <= alone {
		n = min(n, 1)
	}
	var others sync.WaitGroup
	for i := 1; i < n; i++ {
		others.Go(func() { s.workers[i].work(b, i) })
	}
	if n > 0 {
		s.workers[0].work(b, 0)
	}
	others.Wait()
	s.delay(b)
	s.findSwaps(b)
	b.release()
}

// divide divides the groups to be scored into units.
func (b *batch) divide() {
	for i := range b.groups {
		g := &b.groups[i]
		if g.model == nil {
			continue
		}
		rows := int32(g.target.pace.fit())
		if most := g.model.MaxRows(); most > 0 && most < int(rows) {
			rows = int32(most)
		}
		for at := int32(0); at < g.n; at += rows {
			b.units = append(b.units, unit{int32(i), g.first + at, min(rows, g.n-at)})
		}
	}
}

func newWorkers(top int) []*worker {
	all := make([]*worker, runtime.GOMAXPROCS(0))
	for i := range all {
		all[i] = &worker{top: top}
	}
	return all
}

// worker scores units of a batch, one at a time. Its memory is reused.
type worker struct {
	top     int
	in, out []tensor.Tensor
	rows    []int32 // item of each row
}

// work takes units until none is left. It writes its outputs into the batch's arena with
// its number.
func (w *worker) work(b *batch, number int) {
	for {
		i := int(b.next.Add(1)) - 1
		if i >= len(b.units) {
			return
		}
		u := b.units[i]
		w.unit(b, &b.groups[u.group], b.order[u.first:u.first+u.n], number)
	}
}

// unit scores some items of a group, together where they fit together. When the batch is full, items wait for the next one.
func (w *worker) unit(b *batch, g *group, items []int32, number int) {
	for len(items) > 0 {
		if b.filled.Load() >= mostBytes {
			for _, i := range items {
				b.items[i].verdict = waiting
			}
			return
		}
		n := w.read(b, g, items[:g.mostRows(len(items))])
		w.scoreItems(b, g, items[:n], number)
		items = items[n:]
	}
}

// mostRows returns how many of n items are scored at once.
func (g *group) mostRows(n int) int {
	if g.model.Engine() == infer.EngineONNXRuntime {
		n = min(n, g.target.pace.most())
	}
	return n
}

// pace is the number of rows that a model can be asked at once. A slow model gets few in ONNX Runtime's process, because
// a batch there has little time: all events of the scorer wait for it.
type pace struct {
	rows  atomic.Int32 // 0 before the first run
	bytes atomic.Int64 // bytes of an answer; 0 before the first
}

const (
	firstRows = 16
	unitTime  = 250 * time.Millisecond // longest time that a run should take: a twentieth of its limit
)

// fit returns how many answers fit into a unit.
func (p *pace) fit() int { return int(min(unitRows, max(1, unitBytes/max(1, p.bytes.Load())))) }

func (p *pace) most() int { return cmp.Or(int(p.rows.Load()), firstRows) }

// ran adapts the number to a run of some rows.
func (p *pace) ran(rows int, took time.Duration) {
	switch most := p.most(); {
	case took > unitTime:
		p.rows.Store(int32(max(1, int64(rows)*int64(unitTime)/int64(took))))
	case rows == most && most < unitRows && took < unitTime/2:
		p.rows.Store(int32(min(2*most, unitRows)))
	}
}

// scoreItems scores the rows that were read. If the model refuses them together, each is
// scored alone, so that one event does not fail the others.
func (w *worker) scoreItems(b *batch, g *group, items []int32, number int) {
	if len(w.rows) == 0 {
		return
	}
	began := time.Now()
	err := w.runModel(g.model)
	switch {
	case err == nil:
		g.target.pace.ran(len(w.rows), time.Since(began))
		w.write(b, g, number)
	case errors.Is(err, infer.ErrAway): // the events are not at fault, so they wait
		for _, i := range w.rows {
			b.items[i].verdict, b.items[i].reason = waiting, err
		}
	case len(items) == 1:
		it := &b.items[items[0]]
		it.verdict, it.reason = dead, fmt.Errorf("model %s, version %d: %w", g.model.Ref().Model, g.model.Ref().Version, err)
	default:
		for i := range items {
			if b.items[items[i]].verdict == scoring {
				w.unit(b, g, items[i:i+1], number)
			}
		}
	}
}

// runModel runs the model and turns a panic into an error. Otherwise one event could end the
// process again and again.
func (w *worker) runModel(m *infer.Model) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the engine failed: %v", r)
		}
	}()
	if err = m.Run(w.in, w.out); err != nil {
		return err
	}
	return m.Whole(w.out, len(w.rows))
}

// read makes rows of items and returns how many items it has read. Where the model leaves an
// array's length open, an item of another length than the first begins new rows.
func (w *worker) read(b *batch, g *group, items []int32) (n int) {
	w.in = sized(w.in, len(g.plan.inputs))
	w.out = sized(w.out, len(g.model.Outputs()))
	w.rows = w.rows[:0]
	g.plan.Begin(w.in, len(items))
	for ; n < len(items); n++ {
		it := &b.items[items[n]]
		err := g.plan.Read(it.v, w.in, len(w.rows))
		if errors.Is(err, features.ErrLength) {
			break
		}
		if err != nil {
			it.verdict, it.reason = dead, err
			continue
		}
		w.rows = append(w.rows, items[n])
	}
	g.plan.End(w.in, len(w.rows))
	return n
}

// write writes the answers of the rows. A unit takes at most its worker's share of the batch, unless its first answer is larger.
func (w *worker) write(b *batch, g *group, number int) {
	arena := b.arenas[number]
	began, n := len(arena), 0
	for row, i := range w.rows {
		it := &b.items[i]
		from := len(arena)
		if from-began >= mostBytes/len(b.arenas) {
			it.verdict = waiting
			continue
		}
		a := g.model.Answer(w.out, row)
		if arena = appendScored(arena, &a, w.top); len(arena)-from+carriedBytes(it.v) > mostSent {
			it.verdict, it.reason, arena = dead, errTooLarge, arena[:from]
			continue
		}
		it.verdict, it.worker, it.from, it.to = scored, uint8(number), uint32(from), uint32(len(arena))
		n++
	}
	b.arenas[number] = arena
	b.filled.Add(int64(len(arena) - began))
	g.target.pace.bytes.Store(int64((len(arena) - began) / max(1, n)))
}

// sized returns n tensors and reuses the memory of the given ones.
func sized(t []tensor.Tensor, n int) []tensor.Tensor {
	for len(t) < n {
		t = append(t[:cap(t)], tensor.Tensor{})
	}
	return t[:n]
}
