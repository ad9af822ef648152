package deadletters

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"
	"unique"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// addLetter folds a dead letter that was written i seconds after when.
func (f *letterFold) addLetter(i int, change func(*listed)) {
	l := listed{Stream: "events", Partition: int32(i % 3), Offset: int64(100 - i), Last: int64(100 - i), Reason: "500 Internal Server Error",
		Trigger: fmt.Sprint("t-", i%2), OriginalType: "bot-created", Tried: 10}
	if change != nil {
		change(&l)
	}
	v := broker.View{ID: idOf(i), Subject: fmt.Sprint("bot-", i%5)}
	f.letter(broker.Position{Partition: int32(i % 2), Offset: int64(i)}, when.Add(time.Duration(i)*time.Second), &v, &l)
}

func idOf(i int) string { return tidemill.ID("letter", fmt.Sprint(i)) }

func idsOf(all []Entry) (ids []string) {
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	return ids
}

// The list outlives the memory of the delivery from which an entry was read.
func TestEntriesOwnTheirMemory(t *testing.T) {
	for _, key := range []string{"", "bot-42"} {
		memory := make([]byte, 1<<17)[:len("letter-1"+key)] // large, so it is on the heap: the runtime copies strings on the stack
		copy(memory, "letter-1"+key)
		v := broker.View{ID: unsafe.String(&memory[0], len("letter-1")), Key: memory[len("letter-1"):]}
		e := newEntry(broker.Position{}, when, &v, &listed{})
		for i := range memory {
			memory[i] = '?'
		}
		if e.id() != "letter-1" || e.key() != key {
			t.Errorf("after its memory was used again, the entry has id %q and key %q, not letter-1 and %q", e.id(), e.key(), key)
		}
	}
}

func TestLettersLessReceipts(t *testing.T) {
	f := newFold()
	for i := range 6 {
		f.addLetter(i, nil)
	}
	f.addLetter(2, func(l *listed) { l.Reason = "told again" })
	f.receipt(broker.Position{Partition: 1, Offset: 50}, &Receipt{Letter: idOf(3)})
	f.receipt(broker.Position{Partition: 1, Offset: 51}, &Receipt{Letter: idOf(3)}) // the first receipt counts
	f.receipt(broker.Position{Partition: 0, Offset: 60}, &Receipt{Letter: idOf(7)}) // before its dead letter
	f.addLetter(3, nil)                                                             // after its receipt
	f.addLetter(7, nil)
	page, total, more := f.newest(&Selection{}, 10, nil)
	if want := []string{idOf(5), idOf(4), idOf(2), idOf(1), idOf(0)}; !slices.Equal(idsOf(page), want) || total != 5 || more {
		t.Fatalf("open are %v (%d, %v), not %v", idsOf(page), total, more, want)
	}
	if page[2].Reason != "500 Internal Server Error" {
		t.Errorf("a letter that came again says %q", page[2].Reason)
	}
	if at := f.resolved[nameOf(idOf(3))]; at != (place{50, 1}) {
		t.Errorf("the receipt that counts is at %+v", at)
	}
	if got := f.counts; got[page[0].triggerHandle()] != 2 || got[page[1].triggerHandle()] != 3 {
		t.Errorf("the counts are %v", got)
	}
}

func TestAnEntryTellsWhatWasFolded(t *testing.T) {
	f := newFold()
	f.addLetter(4, func(l *listed) { l.Last, l.Group = 120, "prod.triggers.events" })
	f.recordReplay("act-1", []tidemill.LetterRef{{ID: idOf(4)}}, when)
	want := Entry{ID: idOf(4), At: broker.Position{Stream: tidemill.StreamDeadLetters, Partition: 0, Offset: 4}, Written: when.Add(4 * time.Second),
		Trigger: "t-0", Group: "prod.triggers.events", Reason: "500 Internal Server Error", Type: "bot-created", Key: "bot-4", Owner: "bot-4",
		Source: broker.Position{Stream: "events", Partition: 1, Offset: 96}, Last: 120, Tried: 10, Replay: "act-1"}
	all := f.byKey(&Selection{})
	if len(all) != 1 || !reflect.DeepEqual(all[0].full(), want) {
		t.Fatalf("it is %+v, not %+v", all, want)
	}
	got := all[0].full()
	if ref := got.Ref(); ref != (tidemill.LetterRef{Partition: 0, Offset: 4, ID: idOf(4), Stream: "events", Source: 1}) {
		t.Errorf("an act names it %+v", ref)
	}
}

func TestAnActWaitsForItsLetters(t *testing.T) {
	f := newFold()
	f.addLetter(0, nil)
	f.receipt(broker.Position{}, &Receipt{Letter: idOf(1)})
	refs := []tidemill.LetterRef{{ID: idOf(0)}, {ID: idOf(1)}, {ID: idOf(2)}, {ID: idOf(3)}}
	f.recordReplay("first", refs, when)
	f.recordReplay("second", refs[:1], when)
	f.addLetter(2, nil)
	f.receipt(broker.Position{}, &Receipt{Letter: idOf(3)})
	for _, e := range f.byKey(&Selection{}) {
		if act := e.replay.Value(); act != "first" {
			t.Errorf("%s is replayed by %q", e.id(), act)
		}
	}
	f.recordReplay("late", []tidemill.LetterRef{{ID: idOf(9)}}, when)
	f.recordReplay("later", nil, when.Add(2*askedFor))
	if len(f.asked) != 0 {
		t.Errorf("it still waits for %v", f.asked)
	}
}

func TestWhatASelectionMeans(t *testing.T) {
	f := newFold()
	for i := range 10 {
		f.addLetter(i, func(l *listed) {
			if i == 8 {
				l.Trigger, l.Reason, l.OriginalType, l.Stream = "", "attribute id: is missing", "", "messages"
			}
		})
	}
	for name, c := range map[string]struct {
		s    Selection
		want []int
	}{
		"all":                 {Selection{}, []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
		"a trigger's":         {Selection{Trigger: "t-1"}, []int{9, 7, 5, 3, 1}},
		"by reason":           {Selection{Reason: "IS MISSING"}, []int{8}},
		"by type":             {Selection{Type: "bot-created", Trigger: "t-0"}, []int{6, 4, 2, 0}},
		"of a key":            {Selection{Key: "bot-3"}, []int{8, 3}},
		"of a stream":         {Selection{Stream: "messages"}, []int{8}},
		"of some time":        {Selection{Since: when.Add(3 * time.Second), Until: when.Add(5 * time.Second)}, []int{4, 3}},
		"by id":               {Selection{IDs: []string{idOf(2), idOf(1), idOf(2), "none"}}, []int{2, 1}},
		"by id and else":      {Selection{IDs: []string{idOf(2), idOf(1)}, Trigger: "t-1"}, []int{1}},
		"of keys one may see": {Selection{May: func(key string) bool { return key == "bot-0" }}, []int{5, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, i := range c.want {
				want = append(want, idOf(i))
			}
			if got, _, _ := f.newest(&c.s, 100, nil); !slices.Equal(idsOf(got), want) {
				t.Errorf("means %v, not %v", idsOf(got), want)
			}
			if c.s.All() != (name == "all" || name == "of keys one may see") {
				t.Error("it does not know whether it says anything")
			}
		})
	}
}

func TestPagesShowEachLetterOnce(t *testing.T) {
	f := newFold()
	for i := range 100 {
		f.addLetter(i, nil)
		if e := f.open[nameOf(idOf(i))]; i%4 == 0 { // four at a time
			e.written = when.UnixNano()
		}
	}
	whole, _, _ := f.newest(&Selection{}, 1000, nil)
	var pages []Entry
	for behind := (*listPosition)(nil); ; {
		page, total, more := f.newest(&Selection{}, 7, behind)
		if total != 100 {
			t.Fatalf("in all there are %d", total)
		}
		pages = append(pages, page...)
		if !more {
			break
		}
		last := page[len(page)-1]
		m, err := parseCursor(listPosition{last.Written.UnixNano(), last.ID}.String())
		if err != nil {
			t.Fatal(err)
		}
		behind = m
	}
	if !slices.Equal(idsOf(pages), idsOf(whole)) {
		t.Errorf("page by page there are %v, at once %v", idsOf(pages), idsOf(whole))
	}
	for _, text := range []string{"?", "bm9uZQ", "eCB5"[:3] + "!"} {
		if _, err := parseCursor(text); err == nil {
			t.Errorf("%q was taken for a cursor", text)
		}
	}
}

func TestAReplayComesInTheOrderOfKeys(t *testing.T) {
	f := newFold()
	for _, i := range rand.Perm(50) {
		f.addLetter(i, nil)
	}
	last := map[int32]int64{}
	for _, e := range f.byKey(&Selection{}) {
		if at, seen := last[e.source]; seen && at >= e.from {
			t.Errorf("offset %d comes after %d", e.from, at)
		}
		last[e.source] = e.from
	}
}

// Partitions come in any order, and an event may come again.
func TestTheOrderOfPartitionsDecidesNothing(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var parts [4][]func(*letterFold)
		for i := range 40 {
			p := r.IntN(4)
			parts[p] = append(parts[p], func(f *letterFold) { f.addLetter(i, nil) })
			if r.IntN(2) == 0 {
				p = r.IntN(4)
				at := broker.Position{Partition: int32(p), Offset: int64(i)}
				parts[p] = append(parts[p], func(f *letterFold) { f.receipt(at, &Receipt{Letter: idOf(i)}) })
			}
		}
		read := func() []string {
			f := newFold()
			left := parts
			for n := 0; n < 4; {
				p := r.IntN(4)
				if len(left[p]) == 0 {
					n = 0
					for _, rest := range left {
						if len(rest) == 0 {
							n++
						}
					}
					continue
				}
				left[p][0](f)
				if r.IntN(5) == 0 {
					left[p][0](f)
				}
				left[p] = left[p][1:]
			}
			var ids []string
			for _, e := range f.byKey(&Selection{}) {
				ids = append(ids, e.id())
			}
			return ids
		}
		if one, two := read(), read(); !slices.Equal(one, two) {
			t.Fatalf("seed %d: read once there are %v, read again %v", seed, one, two)
		}
	}
}

func TestWhatALetterTakes(t *testing.T) {
	const n = 20_000
	before := live()
	f := newFold()
	for i := range n {
		f.addLetter(i, nil)
	}
	open := (live() - before) / n
	for i := range n {
		f.receipt(broker.Position{Offset: int64(i)}, &Receipt{Letter: idOf(i)})
	}
	f = &letterFold{resolved: f.resolved}
	resolved := (live() - before) / n
	t.Logf("%d bytes an open letter, %d a resolved one", open, resolved)
	if open > 300 || resolved > 80 {
		t.Errorf("an open letter takes %d bytes, a resolved one %d", open, resolved)
	}
	runtime.KeepAlive(f)
}

// live returns the size of the heap. It collects twice, because a pool frees its memory
// at the second collection.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (e *Entry) triggerHandle() unique.Handle[string] { return unique.Make(e.Trigger) }
