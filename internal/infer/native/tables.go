package native

import (
	"hash/maphash"
	"math/bits"
)

// Tables of words and numbers, as flat as they can be: a process that holds ten
// thousand vocabularies must not have millions of pointers for the collector to
// follow.

// empty is a slot that holds nothing; it is also the number of what is not found.
const empty = unknown

// wordTable numbers words in the order in which they come.
type wordTable struct {
	seed    maphash.Seed
	letters []byte   // of all words, one behind the other
	ends    []uint32 // where each ends
	slots   []int32  // by hash; a power of two of them, of which at most half are full
}

// slotsFor is how many there are for so many entries.
func slotsFor(n int) int { return 1 << bits.Len(uint(2*n)) }

func newWordTable(words int) *wordTable {
	t := &wordTable{seed: maphash.MakeSeed(), slots: make([]int32, slotsFor(words))}
	for i := range t.slots {
		t.slots[i] = empty
	}
	return t
}

// find is the number of a word, or else the slot that it would be in.
func (t *wordTable) find(word string) (number int32, slot uint64) {
	last := uint64(len(t.slots) - 1)
	for slot = maphash.String(t.seed, word) & last; ; slot = (slot + 1) & last {
		number = t.slots[slot]
		if number == empty || t.word(number) == word {
			return number, slot
		}
	}
}

// word is a view.
func (t *wordTable) word(number int32) string {
	begin := uint32(0)
	if number > 0 {
		begin = t.ends[number-1]
	}
	return view(t.letters[begin:t.ends[number]])
}

// add numbers a word, if it has no number yet. There must be room.
func (t *wordTable) add(word string) int32 {
	number, slot := t.find(word)
	if number == empty {
		number = int32(len(t.ends))
		t.letters = append(t.letters, word...)
		t.ends = append(t.ends, uint32(len(t.letters)))
		t.slots[slot] = number
	}
	return number
}

func (t *wordTable) bytes() int64 {
	return int64(cap(t.letters)) + 4*int64(cap(t.ends)+len(t.slots))
}

// numberTable is the same for numbers, with a number of the caller's for each.
type numberTable struct {
	keys   []uint64
	values []int32
	n      int
}

func newNumberTable(entries int) *numberTable {
	t := &numberTable{keys: make([]uint64, slotsFor(entries)), values: make([]int32, slotsFor(entries))}
	for i := range t.values {
		t.values[i] = empty
	}
	return t
}

// find is the value of a key, or else the slot that it would be in.
func (t *numberTable) find(key uint64) (value int32, slot uint64) {
	last := uint64(len(t.keys) - 1)
	h := key * 0x9e3779b97f4a7c15
	for slot = (h ^ h>>32) & last; ; slot = (slot + 1) & last {
		if value = t.values[slot]; value == empty || t.keys[slot] == key {
			return value, slot
		}
	}
}

// add sets the value of a key that has none, and says which it has. There must be
// room.
func (t *numberTable) add(key uint64, value int32) int32 {
	had, slot := t.find(key)
	if had != empty {
		return had
	}
	t.keys[slot], t.values[slot] = key, value
	t.n++
	return value
}

func (t *numberTable) bytes() int64 { return 12 * int64(len(t.keys)) }
