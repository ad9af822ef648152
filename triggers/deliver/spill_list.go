package deliver

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// spillList is a list of records in the order of their items: source offset, then replay. It
// takes about four bytes a record, because neighbours differ little and only the differences are
// stored.
type spillList struct {
	blocks []spillBlock
	n      int
}

// spillBlock has at least one record.
type spillBlock struct {
	first recordRef
	last  recordRef
	n     int
	data  []byte // differences between neighbours
}

// maxSpillBlock bounds the records of a block, because an insertion decodes one.
const maxSpillBlock = 256

// compareRefs orders records as the items of a queue are.
func compareRefs(a, b recordRef) int {
	return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.replay, b.replay))
}

// add adds a record in its place, which is nearly always the end.
func (l *spillList) add(r recordRef) {
	l.n++
	last := len(l.blocks) - 1
	if last < 0 || !r.isBefore(l.blocks[last].last) {
		if last < 0 || l.blocks[last].n >= maxSpillBlock {
			l.blocks = append(l.blocks, spillBlock{first: r, last: r, n: 1})
			return
		}
		l.blocks[last].append(r)
		return
	}
	at := sort.Search(len(l.blocks), func(n int) bool { return r.isBefore(l.blocks[n].last) })
	all := l.blocks[at].records()
	n, _ := slices.BinarySearchFunc(all, r, compareRefs)
	l.blocks = slices.Replace(l.blocks, at, at+1, blocksOf(slices.Insert(all, n, r))...)
}

// blocksOf makes one block of some records, or two if they are too many for one.
func blocksOf(all []recordRef) []spillBlock {
	half := len(all)
	if half > maxSpillBlock {
		half /= 2
	}
	var blocks []spillBlock
	for part := range slices.Chunk(all, half) {
		b := spillBlock{first: part[0], last: part[0], n: 1}
		for _, r := range part[1:] {
			b.append(r)
		}
		b.data = slices.Clip(b.data)
		blocks = append(blocks, b)
	}
	return blocks
}

// take removes and returns the first records, at most n.
func (l *spillList) take(n int) []recordRef {
	var all []recordRef
	for len(l.blocks) > 0 && len(all) < n {
		of := l.blocks[0].records()
		l.blocks[0] = spillBlock{}
		l.blocks = l.blocks[1:]
		if most := n - len(all); len(of) > most {
			l.blocks = append(blocksOf(of[most:]), l.blocks...)
			of = of[:most]
		}
		all = append(all, of...)
	}
	if l.n -= len(all); l.n == 0 {
		l.blocks = nil
	}
	return all
}

// merge applies newer records, in the order of their items. A record replaces the one of its item;
// one of an item that is over removes it.
func (l *spillList) merge(entries []foldEntry) {
	keep := sort.Search(len(l.blocks), func(n int) bool { return len(entries) > 0 && !l.blocks[n].last.isBefore(entries[0].ref) })
	old := l.blocks[keep:]
	merged := spillList{blocks: l.blocks[:keep:keep]}
	for _, b := range l.blocks[:keep] {
		merged.n += b.n
	}
	for _, b := range old {
		for _, r := range b.records() {
			for len(entries) > 0 && entries[0].ref.isBefore(r) {
				merged.addNew(&entries[0])
				entries = entries[1:]
			}
			if len(entries) == 0 || !entries[0].ref.same(r) {
				merged.add(r)
			}
		}
	}
	for n := range entries {
		merged.addNew(&entries[n])
	}
	*l = merged
}

func (l *spillList) addNew(e *foldEntry) {
	if !e.over {
		l.add(e.ref)
	}
}

// each calls do with all records in order.
func (l *spillList) each(do func(recordRef)) {
	for n := range l.blocks {
		for _, r := range l.blocks[n].records() {
			do(r)
		}
	}
}

func (b *spillBlock) append(r recordRef) {
	p := b.last
	d := binary.AppendUvarint(b.data, uint64(r.source-p.source))
	d = binary.AppendVarint(d, r.at-p.at)
	d = binary.AppendVarint(d, int64(r.first)-int64(p.first))
	b.data = binary.AppendVarint(d, int64(r.replay)-int64(p.replay))
	b.last = r
	b.n++
}

// records decodes a block.
func (b *spillBlock) records() []recordRef {
	all := make([]recordRef, 1, b.n+1)
	all[0] = b.first
	r, d := b.first, b.data
	number := func() int64 {
		v, size := binary.Varint(d)
		d = d[size:]
		return v
	}
	for len(d) > 0 {
		source, size := binary.Uvarint(d)
		d = d[size:]
		r.source += int64(source)
		r.at += number()
		r.first = uint32(int64(r.first) + number())
		r.replay = uint32(int64(r.replay) + number())
		all = append(all, r)
	}
	return all
}
