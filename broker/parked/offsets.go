package parked

import "math/bits"

// Offsets is the set of offsets of a parked log that are still needed. Its lowest is
// the mark. A bit for each offset is little memory, and the mark must be exact: a log
// that begins after it has lost something.
type Offsets struct {
	pages []page // ordered by offset
	first int64  // number of the first page
	n     int    // offsets in the set
}

const pageBits = 1024

type page struct {
	set [pageBits / 64]uint64
	n   int
}

// Add adds an offset that is not in the set.
func (o *Offsets) Add(offset int64) {
	at := offset / pageBits
	if len(o.pages) == 0 {
		o.first = at
	}
	if at < o.first { // a rebuild adds offsets in any order
		o.pages = append(make([]page, o.first-at, o.first-at+int64(len(o.pages))), o.pages...)
		o.first = at
	}
	for int64(len(o.pages)) <= at-o.first {
		o.pages = append(o.pages, page{})
	}
	p, bit := &o.pages[at-o.first], offset%pageBits
	p.set[bit/64] |= 1 << (bit % 64)
	p.n++
	o.n++
}

// Remove removes an offset that is in the set.
func (o *Offsets) Remove(offset int64) {
	p, bit := &o.pages[offset/pageBits-o.first], offset%pageBits
	p.set[bit/64] &^= 1 << (bit % 64)
	p.n--
	o.n--
	for len(o.pages) > 0 && o.pages[0].n == 0 {
		o.pages = o.pages[1:]
		o.first++
	}
	if len(o.pages) == 0 {
		o.pages = nil
	}
}

// Has reports whether an offset is in the set.
func (o *Offsets) Has(offset int64) bool {
	at := offset/pageBits - o.first
	if len(o.pages) == 0 || at < 0 || at >= int64(len(o.pages)) {
		return false
	}
	bit := offset % pageBits
	return o.pages[at].set[bit/64]&(1<<(bit%64)) != 0
}

// Len returns the number of offsets.
func (o *Offsets) Len() int { return o.n }

// Low returns the lowest offset; end if there is none.
func (o *Offsets) Low(end int64) int64 {
	if len(o.pages) == 0 {
		return end
	}
	for n, word := range o.pages[0].set {
		if word != 0 {
			return o.first*pageBits + int64(n*64+bits.TrailingZeros64(word))
		}
	}
	return end
}
