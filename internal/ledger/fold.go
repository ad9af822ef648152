package ledger

import (
	"fmt"

	"tidemill.dev"
)

// changes are what some facts of one partition change in Redis: the difference
// between before and after, however many facts there were between.
type changes struct {
	partition  int32
	from, next int64
	states     map[place][]byte    // makings and models, as JSON
	records    map[string][]string // by hash: field, value; no value takes it out
	runs       []string            // id, recipe, value; see runValue
	live       []string            // id, value; see liveValue
	pending    []string            // recipe/key, recipe, value; see pendingValue
	keys       []string            // recipe, key, whether it is one; see listsKey
	made       []string            // run, version, whether that is kept; see links
}

// fold folds the facts of a partition in, which come in their order.
func (c *changes) fold(p *part) error {
	makings, models := opened[folding]{}, opened[lineage]{}
	for i := range p.facts {
		if f := &p.facts[i]; f.Model != "" {
			models.of(f.Model, p.lineage).apply(*f)
		} else {
			makings.of(tidemill.RunKey(f.Recipe, f.Key), p.folding).apply(*f)
		}
	}
	c.states, c.records = make(map[place][]byte, len(makings.order)+len(models.order)), map[string][]string{}
	for _, f := range makings.order {
		if err := c.add(f); err != nil {
			return fmt.Errorf("write the making of %s: %w", f.member, err)
		}
	}
	for _, f := range models.order {
		if err := c.addModel(f); err != nil {
			return fmt.Errorf("write model %s: %w", f.model.Name, err)
		}
	}
	c.stampEntries()
	return nil
}

// opened is what is being folded, in the order in which the facts have come to it:
// links list what has come last at their end.
type opened[T any] struct {
	by    map[string]*T
	order []*T
}

func (o *opened[T]) of(name string, open func(string) *T) *T {
	f := o.by[name]
	if f == nil {
		if o.by == nil {
			o.by = map[string]*T{}
		}
		f = open(name)
		o.by[name], o.order = f, append(o.order, f)
	}
	return f
}

// record notes what one field of a hash is to be; no value takes it out.
func (c *changes) record(hash, field, value string) {
	c.records[hash] = append(c.records[hash], field, value)
}
