package deadletters

import (
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Entry is an open dead letter in the list.
type Entry struct {
	ID      string
	At      broker.Position // place of the dead letter
	Written time.Time
	Trigger string // empty if no delivery of a trigger failed
	Scorer  string // scorer that could not score the event; empty if none
	Group   string // consumer group that was reading
	Reason  string
	Type    string // type of the event; empty if the record is no event
	Key     string // subject of the event, or the record's key
	Owner   string // key whose readers may see it; empty if only readers of all keys may
	Other   string // partitionkey of the event, if it has another subject; its readers must have both keys
	Source  broker.Position
	Last    int64  // last offset of Source that the dead letter covers
	Tried   int    // number of attempts
	Replay  string // command that asked for a replay; empty if there is none
}

// Ref returns the reference to the dead letter for a command.
func (e *Entry) Ref() tidemill.LetterRef {
	return tidemill.LetterRef{Partition: e.At.Partition, Offset: e.At.Offset, ID: e.ID, Stream: e.Source.Stream, Source: e.Source.Partition}
}

// name is a hash of a dead letter's id, which may have any length.
type name [16]byte

func nameOf(id string) name {
	sum := sha256.Sum256([]byte(id))
	return name(sum[:])
}

// entry is an Entry in memory. There may be a million entries, so texts that many entries
// share are stored once.
type entry struct {
	text      string // id, followed by the key and the other key
	trigger   unique.Handle[string]
	scorer    unique.Handle[string]
	group     unique.Handle[string]
	reason    unique.Handle[string]
	kind      unique.Handle[string]
	stream    unique.Handle[string] // stream of the source
	replay    unique.Handle[string]
	written   int64 // time in Unix nanoseconds
	offset    int64
	from      int64 // offset in the source
	span      int64 // number of offsets after it that the dead letter also covers
	partition int32
	source    int32 // partition of the source
	tried     int32
	idLength  int32
	keyLength int32
	keyless   bool // the event is about a recipe without keys, whose name is the key
}

// EntryOf returns the entry of a dead letter that was just read.
func EntryOf(at broker.Position, written time.Time, v *broker.View, l *Letter) Entry {
	return newEntry(at, written, v, &listed{Stream: l.Stream, Partition: l.Partition, Offset: l.Offset, Last: l.Last, Group: l.Group,
		Reason: l.Reason, Trigger: l.Trigger, Scorer: l.Scorer, OriginalType: l.OriginalType, Tried: l.Tried}).full()
}

func newEntry(at broker.Position, written time.Time, v *broker.View, l *listed) *entry {
	key := v.Subject
	if key == "" {
		key = string(v.Key)
	}
	other := ""
	if len(v.Key) > 0 && string(v.Key) != key && !tidemill.ReservedType(l.OriginalType) { // the record keys of facts are no keys of users
		other = string(v.Key)
	}
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	if recipe == "" && tidemill.ReservedType(l.OriginalType) { // reads a record, so it is only for facts
		recipe = RecipeOf(v)
	}
	return &entry{
		// Join always copies. + does not copy if the key is empty, and then the text
		// would be in the view's memory, which is reused.
		text: strings.Join([]string{v.ID, key, other}, ""), idLength: int32(len(v.ID)), keyLength: int32(len(key)),
		trigger: unique.Make(l.Trigger), scorer: unique.Make(l.Scorer), group: unique.Make(l.Group), reason: unique.Make(l.Reason),
		kind: unique.Make(l.OriginalType), stream: unique.Make(l.Stream), replay: unique.Make(""),
		written: written.UnixNano(), offset: at.Offset, partition: at.Partition,
		from: l.Offset, span: max(0, l.Last-l.Offset), source: l.Partition, tried: int32(l.Tried),
		keyless: recipe != "" && tidemill.OwnerOf(recipe, key) == "",
	}
}

func (e *entry) id() string    { return e.text[:e.idLength] }
func (e *entry) key() string   { return e.text[e.idLength : e.idLength+e.keyLength] }
func (e *entry) other() string { return e.text[e.idLength+e.keyLength:] }

func (e *entry) owner() string {
	if e.keyless {
		return ""
	}
	return e.key()
}

func (e *entry) full() Entry {
	return Entry{
		ID: e.id(), Key: e.key(), Owner: e.owner(), Other: e.other(), At: broker.Position{Stream: tidemill.StreamDeadLetters, Partition: e.partition, Offset: e.offset},
		Written: time.Unix(0, e.written).UTC(), Trigger: e.trigger.Value(), Scorer: e.scorer.Value(), Group: e.group.Value(), Reason: e.reason.Value(), Type: e.kind.Value(),
		Source: broker.Position{Stream: e.stream.Value(), Partition: e.source, Offset: e.from}, Last: e.from + e.span,
		Tried: int(e.tried), Replay: e.replay.Value(),
	}
}

// letterFold is the set of dead letters without a receipt. It is pure: the same events give the
// same list, in whatever order the partitions are read. A repeated dead letter counts
// once; of several receipts the first counts.
type letterFold struct {
	open     map[name]*entry
	resolved map[name]place // place of each dead letter's receipt
	asked    map[name]early // commands that came before the dead letters that they name
	counts   map[unique.Handle[string]]int
}

// place is the place of a receipt. Resolved dead letters are kept for ever, so nothing
// else is stored about them.
type place struct {
	offset    int64
	partition int32
}

type early struct {
	act string
	at  time.Time
}

func newFold() *letterFold {
	return &letterFold{open: map[name]*entry{}, resolved: map[name]place{}, asked: map[name]early{}, counts: map[unique.Handle[string]]int{}}
}

// letter folds a dead letter. A repeated one changes nothing.
func (f *letterFold) letter(at broker.Position, written time.Time, v *broker.View, l *listed) {
	n := nameOf(v.ID)
	if _, over := f.resolved[n]; over || f.open[n] != nil {
		return
	}
	e := newEntry(at, written, v, l)
	if a, asked := f.asked[n]; asked {
		e.replay = unique.Make(a.act)
		delete(f.asked, n)
	}
	f.open[n] = e
	f.counts[e.trigger]++
}

// receipt folds a receipt. It may come before its dead letter, because they may be on
// different partitions if the stream has grown between them.
func (f *letterFold) receipt(at broker.Position, r *Receipt) {
	n := nameOf(r.Letter)
	if _, over := f.resolved[n]; over {
		return
	}
	f.resolved[n] = place{at.Offset, at.Partition}
	delete(f.asked, n)
	if e := f.open[n]; e != nil {
		f.counts[e.trigger]--
		delete(f.open, n)
	}
}

// askedFor is how long a command waits for the dead letters that it names. The author of the
// command has read those dead letters, so this process will read them soon.
const askedFor = time.Minute

// recordReplay records that a command replays dead letters. A dead letter that is neither open nor
// resolved has not been read yet.
func (f *letterFold) recordReplay(act string, refs []tidemill.LetterRef, now time.Time) {
	for n, a := range f.asked {
		if now.Sub(a.at) > askedFor {
			delete(f.asked, n)
		}
	}
	for _, ref := range refs {
		n := nameOf(ref.ID)
		if e := f.open[n]; e != nil {
			if e.replay.Value() == "" {
				e.replay = unique.Make(act)
			}
			continue
		}
		if _, over := f.resolved[n]; !over {
			f.asked[n] = early{act, now}
		}
	}
}

// Selection selects dead letters; an empty field excludes none.
type Selection struct {
	IDs          []string
	Trigger      string
	Scorer       string
	Reason       string    // text in the reason, in upper or lower case
	Type         string    // type of the event
	Key          string    // subject of the event, its partitionkey, or the record's key
	Stream       string    // stream of the event
	Since, Until time.Time // time when the dead letter was written; Until is excluded
	// May restricts a selection to the owners that a caller may access; nil allows all.
	May func(owner string) bool
}

// All reports whether the selection excludes nothing.
func (s *Selection) All() bool {
	return len(s.IDs) == 0 && s.Trigger == "" && s.Scorer == "" && s.Reason == "" && s.Type == "" && s.Key == "" && s.Stream == "" && s.Since.IsZero() && s.Until.IsZero()
}

// judge returns a function that reports whether a dead letter is selected. It checks a
// reason once, however many dead letters have it.
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
		return e.written >= since && e.written < until && is(e.trigger, s.Trigger) && is(e.scorer, s.Scorer) && is(e.kind, s.Type) && is(e.stream, s.Stream) &&
			(s.Key == "" || e.key() == s.Key || e.other() == s.Key) && (wanted == "" || says(e.reason)) &&
			(s.May == nil || s.May(e.owner()) && (e.other() == "" || s.May(e.other())))
	}
}

func is(have unique.Handle[string], want string) bool { return want == "" || have.Value() == want }

func unixOr(at time.Time, otherwise int64) int64 {
	if at.IsZero() {
		return otherwise
	}
	return at.UnixNano()
}

// forSelected calls fn with the selected dead letters, in no order.
func (f *letterFold) forSelected(s *Selection, fn func(*entry)) {
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

// byKey returns the selected dead letters, those of a partition in order, so that a
// replay keeps the order of keys.
func (f *letterFold) byKey(s *Selection) []*entry {
	var all []*entry
	f.forSelected(s, func(e *entry) { all = append(all, e) })
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.stream.Value(), b.stream.Value()), cmp.Compare(a.source, b.source), cmp.Compare(a.from, b.from), cmp.Compare(a.id(), b.id()))
	})
	return all
}

// listPosition is a place in the list, which is newest first.
type listPosition struct {
	written int64
	id      string
}

func (e *entry) mark() listPosition { return listPosition{e.written, e.id()} }

// isBefore reports whether m comes before other in the list.
func (m listPosition) isBefore(other listPosition) bool {
	return cmp.Or(-cmp.Compare(m.written, other.written), cmp.Compare(m.id, other.id)) < 0
}

// newest returns up to limit selected dead letters after a place, newest first, and the
// number of all selected ones. It stores only those that it returns.
func (f *letterFold) newest(s *Selection, limit int, behind *listPosition) (page []Entry, total int, more bool) {
	var kept newestFirst
	f.forSelected(s, func(e *entry) {
		total++
		if behind != nil && !behind.isBefore(e.mark()) {
			return
		}
		if len(kept) < limit {
			heap.Push(&kept, e)
			return
		}
		more = true
		if e.mark().isBefore(kept[0].mark()) {
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

// newestFirst is a heap with the oldest entry at the top.
type newestFirst []*entry

func (s newestFirst) Len() int           { return len(s) }
func (s newestFirst) Less(i, j int) bool { return s[j].mark().isBefore(s[i].mark()) }
func (s newestFirst) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *newestFirst) Push(x any)        { *s = append(*s, x.(*entry)) }
func (s *newestFirst) Pop() any {
	old := *s
	last := old[len(old)-1]
	*s = old[:len(old)-1]
	return last
}

// String returns the mark as an opaque text for a URL.
func (m listPosition) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(m.written, 36) + " " + m.id))
}

var errCursor = errors.New("it is not a cursor of this list: use one as it was given, in full")

func parseCursor(text string) (*listPosition, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, errCursor
	}
	at, id, ok := strings.Cut(string(b), " ")
	written, err := strconv.ParseInt(at, 36, 64)
	if !ok || err != nil {
		return nil, errCursor
	}
	return &listPosition{written, id}, nil
}
