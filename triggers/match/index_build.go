package match

import (
	"maps"
	"slices"
)

// NewIndex sorts rules by what their conditions leave no choice about: the type,
// and the text of one more attribute.
func NewIndex(rules []Rule) *Index {
	byType, ofAny := map[string][]ruled{}, []ruled(nil)
	for i, r := range rules {
		one := r.ruled(i)
		types, some := r.types()
		if !some {
			ofAny = append(ofAny, one)
		}
		for _, t := range types {
			byType[t] = append(byType[t], one)
		}
	}
	x := &Index{byType: map[string]*shelf{}, ofAny: newShelf(ofAny)}
	for t, those := range byType {
		x.byType[t] = newShelf(those)
	}
	return x
}

// ruled is a rule on its way into a shelf.
type ruled struct {
	index int
	text  string     // of its condition
	left  []conjunct // what is still to be asked
}

// ruled leaves out what a condition says of the type where the shelf says it.
func (r *Rule) ruled(index int) ruled {
	one := ruled{index: index}
	if r.Where == nil {
		return one
	}
	one.text = r.Where.text
	for _, c := range r.Where.conjuncts {
		if !c.tell || !c.about("type") {
			one.left = append(one.left, c)
		}
	}
	return one
}

// types are those that a rule can match: those it names, of which its condition
// may leave fewer, or none.
func (r *Rule) types() (types []string, some bool) {
	types, some = r.Types, len(r.Types) > 0
	if r.Where != nil {
		for _, c := range r.Where.conjuncts {
			if c.about("type") {
				types, some = common(types, some, c.keys), true
			}
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(types))), some
}

func common(types []string, some bool, keys []key) (both []string) {
	for _, k := range keys {
		if !some || slices.Contains(types, k.text) {
			both = append(both, k.text)
		}
	}
	return both
}

// newShelf puts each rule into the drawer where it is likely to have the fewest
// others about it, or into several where each has something it may match by.
func newShelf(those []ruled) *shelf {
	s := &shelf{}
	var loose []ruled
	drawers, texts := map[string]map[string][]ruled{}, variety(those)
	for _, r := range those {
		at := r.tells(texts)
		if at < 0 {
			loose = append(loose, r)
			continue
		}
		c := r.left[at]
		if c.tell {
			r.left = slices.Delete(slices.Clone(r.left), at, at+1)
		}
		for k := range unique(c.keys) {
			if drawers[k.attribute] == nil {
				drawers[k.attribute] = map[string][]ruled{}
			}
			drawers[k.attribute][k.text] = append(drawers[k.attribute][k.text], r)
		}
	}
	s.loose = entriesOf(loose)
	for _, attribute := range slices.Sorted(maps.Keys(drawers)) {
		s.drawers = append(s.drawers, newDrawer(attribute, drawers[attribute]))
	}
	return s
}

func unique(keys []key) map[key]bool {
	set := map[key]bool{}
	for _, k := range keys {
		set[k] = true
	}
	return set
}

func newDrawer(attribute string, byText map[string][]ruled) drawer {
	d := drawer{get: attributeOf(attribute), byText: make(map[string][]entry, len(byText))}
	for text, those := range byText {
		d.byText[text] = entriesOf(those)
	}
	return d
}

// variety counts the texts that conditions ask of each attribute.
func variety(those []ruled) map[string]int {
	seen, counts := map[key]bool{}, map[string]int{}
	for _, r := range those {
		for _, c := range r.left {
			for _, k := range c.keys {
				if !seen[k] {
					seen[k] = true
					counts[k.attribute]++
				}
			}
		}
	}
	return counts
}

// tells is which of a rule's conditions tells it best from others, -1 if none
// does.
func (r *ruled) tells(texts map[string]int) int {
	best, most := -1, 0
	for i, c := range r.left {
		if n := leastVaried(c.keys, texts); n > most {
			best, most = i, n
		}
	}
	return best
}

func leastVaried(keys []key, texts map[string]int) (least int) {
	for i, k := range keys {
		if n := texts[k.attribute]; i == 0 || n < least {
			least = n
		}
	}
	return least
}

// entriesOf puts rules with the same condition together, so that it is asked
// once.
func entriesOf(those []ruled) (entries []entry) {
	at := map[string]int{}
	for _, r := range those {
		if len(r.left) == 0 {
			r.text = ""
		}
		i, known := at[r.text]
		if !known {
			i = len(entries)
			at[r.text] = i
			entries = append(entries, entry{})
			if len(r.left) > 0 {
				entries[i].holds = allOf(r.left)
			}
		}
		entries[i].rules = append(entries[i].rules, r.index)
	}
	return entries
}
