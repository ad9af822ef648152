package ledger

import (
	"fmt"

	"tidemill.dev"
)

// mostRows and mostBytes bound what is kept unwritten of a partition: what one
// script writes, and the memory.
const (
	mostRows  = 16 << 10
	mostBytes = 16 << 20
)

// unwritten is what the facts of a stretch of one partition make of its makings
// and models, for as long as Redis does not have it. Whoever is far behind writes
// only now and then: of the many facts of a making, and of the many runs that it
// has forgotten since, nothing is written but what is left in the end.
type unwritten struct {
	partition  int32
	from, next int64
	makings    map[string]*folding
	models     map[string]*lineage
	facts      int
	bytes      int
}

// fold folds the facts in, which come in their order.
func (u *unwritten) fold(p *part) {
	for i := range p.facts {
		f := &p.facts[i]
		if f.Model != "" {
			u.models[f.Model].apply(*f)
		} else {
			u.makings[tidemill.RunKey(f.Recipe, f.Key)].apply(*f)
		}
		u.bytes += len(f.Data)
	}
	u.facts += len(p.facts)
	u.next = p.next
}

// rows is how much there is to write, about.
func (u *unwritten) rows() int {
	n := len(u.makings) + len(u.models)
	for _, f := range u.makings {
		n += len(f.ended)
	}
	for _, f := range u.models {
		n += len(f.registered) + len(f.judged)
	}
	return n
}

// due reports whether it is to be written now: near the end of the log that is
// always so.
func (u *unwritten) due(end int64, far bool, rows int) bool {
	return !far || u.next >= end || u.bytes >= mostBytes || u.rows() >= rows
}

// changes are what has to be written.
func (u *unwritten) changes() (*changes, error) {
	c := &changes{partition: u.partition, from: u.from, next: u.next,
		states: make(map[place][]byte, len(u.makings)+len(u.models)), records: map[string][]string{}}
	for _, f := range u.makings {
		if err := c.add(f); err != nil {
			return nil, fmt.Errorf("write the making of %s: %w", f.member, err)
		}
	}
	for _, f := range u.models {
		if err := c.addModel(f); err != nil {
			return nil, fmt.Errorf("write model %s: %w", f.model.Name, err)
		}
	}
	c.stampEntries()
	return c, nil
}
