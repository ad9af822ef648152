package score

import (
	"runtime"
	"sync"
)

const (
	// unitRows is how many events a model is asked about at once: enough to share
	// its weights, and few enough that cores end together.
	unitRows = 256
	// alone is how many events one core scores before another would have been
	// woken up.
	alone = 48
)

// unit is some items of one group.
type unit struct {
	group int32
	first int32 // in the batch's order
	n     int32
}

// compute scores what is to be scored, on all cores.
func (s *session) compute(b *batch) {
	b.cut()
	b.next.Store(0)
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
	s.speak(b)
	b.release()
}

// cut makes units of the groups that are scored.
func (b *batch) cut() {
	for i := range b.groups {
		g := &b.groups[i]
		if g.model == nil {
			continue
		}
		rows := int32(unitRows)
		if most := g.model.MaxRows(); most > 0 && most < unitRows {
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
