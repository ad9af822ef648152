package ledger

import (
	"cmp"
	"slices"
)

// changes are what some facts of one partition change in Redis: the difference
// between before and after, however many facts there were between.
type changes struct {
	partition  int32
	from, next int64
	states     map[place][]byte    // makings and models, as JSON
	records    map[string][]string // by hash: field, value; no value takes it out
	rows       []runRow
	live       []string // id, value; see liveValue
	pending    []string // recipe/key, recipe, value; see pendingValue
	keys       []string // recipe, key, whether it is one; see listsKey
	made       []string // run, version, whether that is kept; see links
}

// runRow is what is to be of a run; see runValue. No value takes it out.
type runRow struct {
	asked             int64 // the offset of the first fact that did
	id, recipe, value string
}

// runs are the rows in the order in which the runs were asked for: links list what
// has come last at their end.
func (c *changes) runs() []string {
	slices.SortStableFunc(c.rows, func(a, b runRow) int { return cmp.Compare(a.asked, b.asked) })
	all := make([]string, 0, 3*len(c.rows))
	for _, r := range c.rows {
		all = append(all, r.id, r.recipe, r.value)
	}
	return all
}

// record notes what one field of a hash is to be; no value takes it out.
func (c *changes) record(hash, field, value string) {
	c.records[hash] = append(c.records[hash], field, value)
}
