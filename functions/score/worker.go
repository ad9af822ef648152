package score

import (
	"errors"
	"fmt"

	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/infer/tensor"
	"tidemill.dev/internal/pick"
)

// worker scores units of a batch, one at a time. Its memory is used again.
type worker struct {
	top     int
	in, out []tensor.Tensor
	rows    []int32 // the item of each row
}

// work takes units until none is left. What it writes goes into the batch's
// arena of its number.
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

// unit scores some items of a group, together those that fit together.
func (w *worker) unit(b *batch, g *group, items []int32, number int) {
	for len(items) > 0 {
		n := w.read(b, g, items)
		w.run(b, g, items[:n], number)
		items = items[n:]
	}
}

// run asks the model about what was read of some items. If it refuses them
// together, each is asked alone: one event must not take others with it.
func (w *worker) run(b *batch, g *group, items []int32, number int) {
	if len(w.rows) == 0 {
		return
	}
	err := w.ask(g.model)
	switch {
	case err == nil:
		w.write(b, g, number)
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

// ask runs the model. An engine's mistake over one event must not end the others,
// and the process with them, again and again.
func (w *worker) ask(m *infer.Model) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the engine failed: %v", r)
		}
	}()
	if err := m.Run(w.in, w.out); err != nil {
		return err
	}
	return m.Whole(w.out, len(w.rows))
}

// read makes rows of items, and returns how many items it came to: one whose arrays
// are of another length than the first's, where the model leaves that open, begins
// other rows.
func (w *worker) read(b *batch, g *group, items []int32) (n int) {
	w.in = sized(w.in, len(g.plan.inputs))
	w.out = sized(w.out, len(g.model.Outputs()))
	w.rows = w.rows[:0]
	g.plan.Begin(w.in, len(items))
	for ; n < len(items); n++ {
		it := &b.items[items[n]]
		err := g.plan.Read(it.v, w.in, len(w.rows))
		if errors.Is(err, pick.ErrLength) {
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

func (w *worker) write(b *batch, g *group, number int) {
	arena := b.arenas[number]
	for row, i := range w.rows {
		it := &b.items[i]
		from := len(arena)
		a := g.model.Answer(w.out, row)
		if arena = appendScored(arena, &a, w.top); len(arena)-from+carriedBytes(it.v) > mostSent {
			it.verdict, it.reason, arena = dead, errTooLarge, arena[:from]
			continue
		}
		it.verdict, it.worker, it.from, it.to = scored, uint8(number), uint32(from), uint32(len(arena))
	}
	b.arenas[number] = arena
}

// sized are so many tensors, with the memory of those that there were.
func sized(t []tensor.Tensor, n int) []tensor.Tensor {
	for len(t) < n {
		t = append(t[:cap(t)], tensor.Tensor{})
	}
	return t[:n]
}
