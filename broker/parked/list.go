package parked

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// Ref refers to a record of a parked log. There may be millions.
type Ref struct {
	Order int64  // offset by which the list is ordered: that of the event on the source, or that on the parked log
	Other int64  // the other of these two offsets
	Copy  uint32 // distinguishes records with the same order
	Extra uint32 // number that the owner wants back
}

// Compare orders the records of a list.
func (r Ref) Compare(o Ref) int {
	if r.Order != o.Order {
		return cmp.Compare(r.Order, o.Order)
	}
	return cmp.Compare(r.Copy, o.Copy)
}

// List is an ordered list of records. It takes two to four bytes a record, because
// neighbours differ little and only the differences are stored.
type List struct {
	blocks []block
	n      int
}

// block has at least one record.
type block struct {
	first Ref
	last  Ref
	n     int
	data  []byte // differences between neighbours
}

// maxBlock bounds the records of a block, because an insertion decodes one.
const maxBlock = 256

// Len returns the number of records.
func (l *List) Len() int { return l.n }

// Add adds a record in its place, which is nearly always the end.
func (l *List) Add(r Ref) {
	l.n++
	last := len(l.blocks) - 1
	if last < 0 || r.Compare(l.blocks[last].last) >= 0 {
		if last < 0 || l.blocks[last].n >= maxBlock {
			l.blocks = append(l.blocks, block{first: r, last: r, n: 1})
			return
		}
		l.blocks[last].append(r)
		return
	}
	at := sort.Search(len(l.blocks), func(n int) bool { return r.Compare(l.blocks[n].last) < 0 })
	all := l.blocks[at].records()
	n, _ := slices.BinarySearchFunc(all, r, Ref.Compare)
	l.blocks = slices.Replace(l.blocks, at, at+1, blocksOf(slices.Insert(all, n, r))...)
}

// blocksOf makes one block of some records, or two if they are too many for one.
func blocksOf(all []Ref) []block {
	half := len(all)
	if half > maxBlock {
		half /= 2
	}
	var blocks []block
	for part := range slices.Chunk(all, half) {
		b := block{first: part[0], last: part[0], n: 1}
		for _, r := range part[1:] {
			b.append(r)
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// Pop removes and returns the first record; false if there is none.
func (l *List) Pop() (r Ref, ok bool) {
	if l.n == 0 {
		return Ref{}, false
	}
	b := &l.blocks[0]
	r = b.first
	l.n--
	if b.n--; b.n > 0 {
		b.first, b.data = next(b.first, b.data)
		return r, true
	}
	*b = block{}
	if l.blocks = l.blocks[1:]; l.n == 0 {
		l.blocks = nil
	}
	return r, true
}

// Merge applies n newer records, in the order of the list. A record replaces the one with the same order
// and copy. If its item is over, it only removes that one.
func (l *List) Merge(n int, newer func(int) (r Ref, over bool)) {
	if n == 0 {
		return
	}
	first, _ := newer(0)
	keep := sort.Search(len(l.blocks), func(n int) bool { return l.blocks[n].last.Compare(first) >= 0 })
	merged := List{blocks: l.blocks[:keep:keep]}
	for _, b := range merged.blocks {
		merged.n += b.n
	}
	at := 0
	addBefore := func(old Ref) (replaced bool) {
		for ; at < n; at++ {
			r, over := newer(at)
			if order := r.Compare(old); order >= 0 {
				return order == 0
			}
			if !over {
				merged.Add(r)
			}
		}
		return false
	}
	for _, b := range l.blocks[keep:] {
		for _, r := range b.records() {
			if !addBefore(r) {
				merged.Add(r)
			}
		}
	}
	for ; at < n; at++ {
		if r, over := newer(at); !over {
			merged.Add(r)
		}
	}
	*l = merged
}

// Each calls do with all records in order.
func (l *List) Each(do func(Ref)) {
	for n := range l.blocks {
		for _, r := range l.blocks[n].records() {
			do(r)
		}
	}
}

// append adds a record to the end. The lowest bit of its first number says whether copy or extra changes.
func (b *block) append(r Ref) {
	p := b.last
	order, odd := uint64(r.Order-p.Order)<<1, r.Copy != p.Copy || r.Extra != p.Extra
	if odd {
		order |= 1
	}
	b.data = binary.AppendUvarint(b.data, order)
	b.data = binary.AppendVarint(b.data, r.Other-p.Other)
	if odd {
		b.data = binary.AppendVarint(b.data, int64(r.Copy)-int64(p.Copy))
		b.data = binary.AppendVarint(b.data, int64(r.Extra)-int64(p.Extra))
	}
	b.last = r
	if b.n++; b.n == maxBlock {
		b.data = append(make([]byte, 0, len(b.data)), b.data...) // the block is full
	}
}

// next decodes the record after another one, and returns the rest of the data.
func next(r Ref, data []byte) (Ref, []byte) {
	order, size := binary.Uvarint(data)
	data = data[size:]
	number := func() int64 {
		v, size := binary.Varint(data)
		data = data[size:]
		return v
	}
	r.Order += int64(order >> 1)
	r.Other += number()
	if order&1 != 0 {
		r.Copy = uint32(int64(r.Copy) + number())
		r.Extra = uint32(int64(r.Extra) + number())
	}
	return r, data
}

// records decodes a block.
func (b *block) records() []Ref {
	all := make([]Ref, 1, b.n+1)
	all[0] = b.first
	for r, d := b.first, b.data; len(d) > 0; {
		r, d = next(r, d)
		all = append(all, r)
	}
	return all
}
