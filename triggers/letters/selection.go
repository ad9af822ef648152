package letters

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"
	"unique"
)

// Selection says which letters are meant; what is empty excludes none.
type Selection struct {
	IDs          []string
	Trigger      string
	Reason       string // that the reason contains, in upper or lower case
	Type         string // of the event
	Key          string
	Stream       string    // where the event was read
	Since, Until time.Time // when the letter was written; Until is not part of it
	// May limits a selection to the keys that a caller may touch; nil is all.
	May func(key string) bool
}

// All reports whether nothing is said of which letters are meant.
func (s *Selection) All() bool {
	return len(s.IDs) == 0 && s.Trigger == "" && s.Reason == "" && s.Type == "" && s.Key == "" && s.Stream == "" && s.Since.IsZero() && s.Until.IsZero()
}

// judge tells whether a letter is meant. Whether a reason contains a text is
// asked once a reason and not once a letter.
func (s *Selection) judge() func(*entry) bool {
	reasons := map[unique.Handle[string]]bool{}
	wanted := strings.ToLower(s.Reason)
	says := func(reason unique.Handle[string]) bool {
		yes, known := reasons[reason]
		if !known {
			yes = strings.Contains(strings.ToLower(reason.Value()), wanted)
			reasons[reason] = yes
		}
		return yes
	}
	since, until := unixOr(s.Since, -1<<63), unixOr(s.Until, 1<<63-1)
	return func(e *entry) bool {
		return e.written >= since && e.written < until && is(e.trigger, s.Trigger) && is(e.kind, s.Type) && is(e.stream, s.Stream) &&
			(s.Key == "" || e.key() == s.Key) && (wanted == "" || says(e.reason)) && (s.May == nil || s.May(e.key()))
	}
}

func is(have unique.Handle[string], want string) bool { return want == "" || have.Value() == want }

func unixOr(at time.Time, otherwise int64) int64 {
	if at.IsZero() {
		return otherwise
	}
	return at.UnixNano()
}

// each goes through the letters that are meant, in no order.
func (f *fold) each(s *Selection, fn func(*entry)) {
	wanted := s.judge()
	if len(s.IDs) == 0 {
		for _, e := range f.open {
			if wanted(e) {
				fn(e)
			}
		}
		return
	}
	seen := map[name]bool{}
	for _, id := range s.IDs {
		n := nameOf(id)
		if e := f.open[n]; e != nil && !seen[n] && wanted(e) {
			fn(e)
		}
		seen[n] = true
	}
}

// byKey is every letter that is meant, those of one partition in its order: so
// that what is replayed comes in the order of its keys.
func (f *fold) byKey(s *Selection) []*entry {
	var all []*entry
	f.each(s, func(e *entry) { all = append(all, e) })
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.stream.Value(), b.stream.Value()), cmp.Compare(a.source, b.source), cmp.Compare(a.from, b.from), cmp.Compare(a.id(), b.id()))
	})
	return all
}

// mark is a place in the list that is newest first.
type mark struct {
	written int64
	id      string
}

func (e *entry) mark() mark { return mark{e.written, e.id()} }

// before tells which of two comes first.
func (m mark) before(other mark) bool {
	return cmp.Or(-cmp.Compare(m.written, other.written), cmp.Compare(m.id, other.id)) < 0
}

// newest is up to so many of the letters that are meant, newest first, behind a
// place in that order, and how many are meant in all. It keeps only those it
// returns, however many there are.
func (f *fold) newest(s *Selection, limit int, behind *mark) (page []Entry, total int, more bool) {
	var kept shelf
	f.each(s, func(e *entry) {
		total++
		if behind != nil && !behind.before(e.mark()) {
			return
		}
		if len(kept) < limit {
			heap.Push(&kept, e)
			return
		}
		more = true
		if e.mark().before(kept[0].mark()) {
			kept[0] = e
			heap.Fix(&kept, 0)
		}
	})
	page = make([]Entry, len(kept))
	for i := len(page) - 1; i >= 0; i-- {
		page[i] = heap.Pop(&kept).(*entry).full()
	}
	return page, total, more
}

// shelf is a heap whose first is the one that comes last in the list.
type shelf []*entry

func (s shelf) Len() int           { return len(s) }
func (s shelf) Less(i, j int) bool { return s[j].mark().before(s[i].mark()) }
func (s shelf) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *shelf) Push(x any)        { *s = append(*s, x.(*entry)) }
func (s *shelf) Pop() any {
	old := *s
	last := old[len(old)-1]
	*s = old[:len(old)-1]
	return last
}
