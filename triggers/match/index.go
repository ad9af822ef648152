package match

import (
	"slices"

	"tidemill.dev/broker"
)

// Rule says which events are wanted.
type Rule struct {
	Types []string // none is every type
	Where *Filter  // nil is every event
}

// Index tells which of many rules want an event, in a time that grows with those
// that could, and not with those there are. It does not change, and many
// goroutines may ask it.
type Index struct {
	byType map[string]*shelf
	ofAny  *shelf // rules for events of every type
}

// shelf holds rules, in a drawer where an event must have a certain text in an
// attribute for them.
type shelf struct {
	drawers []drawer
	loose   []entry
}

type drawer struct {
	get    attribute
	byText map[string][]entry
}

// entry is one condition, and the rules that have it.
type entry struct {
	rules []int
	holds condition // nil always does
}

// Match appends the indexes of the rules that want an event, in ascending order.
// It allocates nothing where dst has room.
func (x *Index) Match(v *broker.View, dst []int) []int {
	had := len(dst)
	dst = x.ofAny.collect(v, dst)
	if s := x.byType[v.Type]; s != nil {
		dst = s.collect(v, dst)
	}
	if found := dst[had:]; !slices.IsSorted(found) {
		slices.Sort(found)
	}
	return dst[:had+len(slices.Compact(dst[had:]))] // a rule may lie in several drawers
}

func (s *shelf) collect(v *broker.View, dst []int) []int {
	dst = collect(v, s.loose, dst)
	for i := range s.drawers {
		d := &s.drawers[i]
		if text, there := d.get(v); there {
			dst = collect(v, d.byText[text], dst)
		}
	}
	return dst
}

func collect(v *broker.View, entries []entry, dst []int) []int {
	for i := range entries {
		if e := &entries[i]; e.holds == nil || e.holds(v) == yes {
			dst = append(dst, e.rules...)
		}
	}
	return dst
}
