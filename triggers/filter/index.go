package filter

import (
	"maps"
	"slices"

	"tidemill.dev/broker"
	"tidemill.dev/config/cesql"
)

// Rule selects events.
type Rule struct {
	Types []string // none means every type
	Where *Filter  // nil means every event
}

// Index finds the rules that match an event. Its time grows with the rules that could
// match and not with all rules. It is read-only and safe for concurrent use.
type Index struct {
	byType map[string]*ruleSet
	ofAny  *ruleSet // rules for events of every type
}

// ruleSet is a set of rules, indexed by the text that an event must have in one attribute.
type ruleSet struct {
	drawers []textIndex
	loose   []entry
}

type textIndex struct {
	get    attribute
	byText map[string][]entry
}

// entry is one condition with the rules that have it.
type entry struct {
	rules []int
	holds condition // nil means always
}

// Match appends the indexes of the rules that match an event, in ascending order. It
// allocates nothing if dst has room.
func (x *Index) Match(v *broker.View, dst []int) []int {
	had := len(dst)
	dst = x.ofAny.collect(v, dst)
	if s := x.byType[v.Type]; s != nil {
		dst = s.collect(v, dst)
	}
	if found := dst[had:]; !slices.IsSorted(found) {
		slices.Sort(found)
	}
	return dst[:had+len(slices.Compact(dst[had:]))] // a rule may be in several indexes
}

func (s *ruleSet) collect(v *broker.View, dst []int) []int {
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

// NewIndex indexes rules by type and by the text that their conditions require in one
// more attribute.
func NewIndex(rules []Rule) *Index {
	byType, ofAny := map[string][]indexedRule{}, []indexedRule(nil)
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
	x := &Index{byType: map[string]*ruleSet{}, ofAny: newRuleSet(ofAny)}
	for t, those := range byType {
		x.byType[t] = newRuleSet(those)
	}
	return x
}

// indexedRule is a rule that is being added to a rule set.
type indexedRule struct {
	index int
	text  string     // text of its condition
	left  []conjunct // conditions that are still evaluated
}

// ruled leaves out conditions on the type that the index already checks.
func (r *Rule) ruled(index int) indexedRule {
	one := indexedRule{index: index}
	if r.Where == nil {
		return one
	}
	one.text = r.Where.text
	for _, c := range r.Where.conjuncts {
		if !c.exact || !c.isOnAttribute("type") {
			one.left = append(one.left, c)
		}
	}
	return one
}

// types returns the types that a rule can match: the listed types without those that its
// condition excludes.
func (r *Rule) types() (types []string, some bool) {
	types, some = r.Types, len(r.Types) > 0
	if r.Where != nil {
		for _, c := range r.Where.conjuncts {
			if c.isOnAttribute("type") {
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

// newRuleSet puts each rule under the text that is likely to have the fewest other
// rules, or under several if it matches any of them.
func newRuleSet(those []indexedRule) *ruleSet {
	s := &ruleSet{}
	var loose []indexedRule
	drawers, texts := map[string]map[string][]indexedRule{}, variety(those)
	for _, r := range those {
		at := r.mostSelective(texts)
		if at < 0 {
			loose = append(loose, r)
			continue
		}
		c := r.left[at]
		if c.exact {
			r.left = slices.Delete(slices.Clone(r.left), at, at+1)
		}
		for k := range unique(c.keys) {
			if drawers[k.attribute] == nil {
				drawers[k.attribute] = map[string][]indexedRule{}
			}
			drawers[k.attribute][k.text] = append(drawers[k.attribute][k.text], r)
		}
	}
	s.loose = entriesOf(loose)
	for _, attribute := range slices.Sorted(maps.Keys(drawers)) {
		s.drawers = append(s.drawers, newTextIndex(attribute, drawers[attribute]))
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

func newTextIndex(attribute string, byText map[string][]indexedRule) textIndex {
	d := textIndex{get: attributeOf(attribute), byText: make(map[string][]entry, len(byText))}
	for text, those := range byText {
		d.byText[text] = entriesOf(those)
	}
	return d
}

// variety counts the texts that conditions require of each attribute.
func variety(those []indexedRule) map[string]int {
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

// mostSelective returns the index of the condition that distinguishes a rule best from others; -1
// if there is none.
func (r *indexedRule) mostSelective(texts map[string]int) int {
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

// entriesOf groups rules with the same condition, so that it is evaluated once.
func entriesOf(those []indexedRule) (entries []entry) {
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

// conjunct is one of several conditions that must all hold.
type conjunct struct {
	holds condition
	// keys are texts: the condition can hold only if the event has one of them;
	// none if they are unknown.
	keys  []key
	exact bool // whether it holds for every event with one of them
}

// key is a text in an attribute. The index compares keys to find out whether a condition
// may hold, without evaluating it.
type key struct{ attribute, text string }

func conjuncts(x cesql.Expr) []conjunct {
	parts := chain("AND", x, nil)
	list := make([]conjunct, len(parts))
	for i, part := range parts {
		keys, exact := keysOf(part)
		list[i] = conjunct{newCondition(part), keys, exact}
	}
	return list
}

// keysOf returns nil if an expression may be true with any text.
func keysOf(x cesql.Expr) (keys []key, exact bool) {
	switch x := x.(type) {
	case *cesql.In:
		return membership(x), true
	case *cesql.Binary:
		switch x.Op {
		case "=":
			return sameness(x), true
		case "OR":
			return keysOfAny(x), false // an unknown alternative makes the others useless
		case "AND":
			return keysOfAll(x), false
		}
	}
	return nil, false
}

func keysOfAny(x *cesql.Binary) (all []key) {
	for _, part := range chain("OR", x, nil) {
		keys, _ := keysOf(part)
		if keys == nil {
			return nil
		}
		all = append(all, keys...)
	}
	return all
}

// keysOfAll returns the keys of the part with the fewest. The type is the last choice,
// because most other rules in the set have the same.
func keysOfAll(x *cesql.Binary) (best []key) {
	for _, part := range chain("AND", x, nil) {
		keys, _ := keysOf(part)
		if keys != nil && (best == nil || best[0].attribute == "type" || keys[0].attribute != "type" && len(keys) < len(best)) {
			best = keys
		}
	}
	return best
}

// membership is x IN ('a', 'b') for an attribute x. The elements of the set are cast to text.
func membership(x *cesql.In) (keys []key) {
	a, ok := x.X.(*cesql.Attribute)
	if !ok {
		return nil
	}
	for _, y := range x.Set {
		l, ok := y.(*cesql.Literal)
		if !ok {
			return nil
		}
		keys = append(keys, key{a.Name, toValue(l.Value).text()})
	}
	return keys
}

// sameness is x = 'a' or 'a' = x for an attribute x.
func sameness(x *cesql.Binary) []key {
	left, right := x.X, x.Y
	if _, ok := left.(*cesql.Literal); ok {
		left, right = right, left
	}
	a, isAttribute := left.(*cesql.Attribute)
	l, isLiteral := right.(*cesql.Literal)
	if !isAttribute || !isLiteral {
		return nil
	}
	if s, ok := l.Value.(string); ok {
		return []key{{a.Name, s}}
	}
	return nil
}

// isOnAttribute reports whether all keys are of one attribute.
func (c *conjunct) isOnAttribute(attribute string) bool {
	return len(c.keys) > 0 && !slices.ContainsFunc(c.keys, func(k key) bool { return k.attribute != attribute })
}

// allOf returns a condition that holds if all of the list do.
func allOf(list []conjunct) condition {
	conditions := make([]condition, len(list))
	for i, c := range list {
		conditions[i] = c.holds
	}
	return andConditions(conditions)
}
