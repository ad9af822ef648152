package deliver

import "math/bits"

// ledger knows which offsets of the parked log are needed, and so below which
// nothing is. A bit an offset is little, and the mark must be exact: a log that
// begins behind it has lost something.
type ledger struct {
	pages []page // by offset, from the first on
	first int64  // number of the first page
	n     int    // offsets that are needed
}

const pageBits = 1024

type page struct {
	set [pageBits / 64]uint64
	n   int
}

func (l *ledger) add(offset int64) {
	at := offset / pageBits
	if len(l.pages) == 0 {
		l.first = at
	}
	for at < l.first { // a rebuild adds in any order
		l.pages = append([]page{{}}, l.pages...)
		l.first--
	}
	for int64(len(l.pages)) <= at-l.first {
		l.pages = append(l.pages, page{})
	}
	p, bit := &l.pages[at-l.first], offset%pageBits
	p.set[bit/64] |= 1 << (bit % 64)
	p.n++
	l.n++
}

func (l *ledger) remove(offset int64) {
	p, bit := &l.pages[offset/pageBits-l.first], offset%pageBits
	p.set[bit/64] &^= 1 << (bit % 64)
	p.n--
	l.n--
	for len(l.pages) > 0 && l.pages[0].n == 0 {
		l.pages = l.pages[1:]
		l.first++
	}
	if len(l.pages) == 0 {
		l.pages = nil
	}
}

// has tells whether an offset is needed.
func (l *ledger) has(offset int64) bool {
	at := offset/pageBits - l.first
	if len(l.pages) == 0 || at < 0 || at >= int64(len(l.pages)) {
		return false
	}
	bit := offset % pageBits
	return l.pages[at].set[bit/64]&(1<<(bit%64)) != 0
}

// low is the first offset that is needed; the log's end if none is.
func (l *ledger) low(end int64) int64 {
	if len(l.pages) == 0 {
		return end
	}
	for n, word := range l.pages[0].set {
		if word != 0 {
			return l.first*pageBits + int64(n*64+bits.TrailingZeros64(word))
		}
	}
	return end
}
