package parked

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"tidemill.dev/broker"
)

// Cache keeps records of a parked log in memory, because a read returns thousands of
// records and only a few are needed at once. It has no lock.
type Cache[K comparable, V any] struct {
	limit   int // bytes; 0 is unbounded
	entries map[K]cached[V]
	order   []K // oldest first; used only if there is a limit
	size    int
}

type cached[V any] struct {
	value V
	size  int
}

// NewCache returns a cache that drops its oldest records when their size exceeds the
// limit. With limit 0 the owner must bound it.
func NewCache[K comparable, V any](limit int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, entries: map[K]cached[V]{}}
}

// Put adds a record, unless the cache has it already.
func (c *Cache[K, V]) Put(key K, value V, size int) {
	if c.Has(key) {
		return
	}
	c.entries[key] = cached[V]{value, size}
	c.size += size
	if c.limit == 0 {
		return
	}
	c.order = append(c.order, key)
	for c.size > c.limit || len(c.order) > 2*len(c.entries)+64 {
		c.Take(c.order[0])
		c.order = c.order[1:]
	}
}

// Take removes and returns a record.
func (c *Cache[K, V]) Take(key K) (value V, ok bool) {
	e, ok := c.entries[key]
	if ok {
		delete(c.entries, key)
		c.size -= e.size
	}
	return e.value, ok
}

// Has reports whether the cache has a record.
func (c *Cache[K, V]) Has(key K) bool {
	_, ok := c.entries[key]
	return ok
}

// Size returns the bytes of all records.
func (c *Cache[K, V]) Size() int { return c.size }

// Clear drops all records.
func (c *Cache[K, V]) Clear() {
	c.entries, c.order, c.size = map[K]cached[V]{}, nil, 0 // a new map, because a map keeps the memory of its largest size
}

// Size returns about how many bytes an event takes in memory and on the log.
func Size(v *broker.View) int {
	n := 256 + len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.DataContentType) + len(v.DataSchema) + len(v.Time) + len(v.Data) + len(v.Key)
	for _, x := range v.Extensions {
		n += 32 + len(x.Name) + len(x.Value)
	}
	for _, h := range v.Foreign {
		n += 32 + len(h.Key) + len(h.Value)
	}
	return n
}

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

// Rebuild reads parked logs from their marks to their ends. A mark below 0 means that
// the log is read from its beginning. It waits for records that a predecessor's
// transaction may still be about to make visible: see [broker.Broker.ReadBack]. It
// returns where each log ended, and the first error of add.
func Rebuild(ctx context.Context, b *broker.Broker, marks []broker.Position, add func(*broker.Incoming) error) ([]broker.Position, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	from := slices.Clone(marks)
	for n := range from {
		from[n].Offset = max(from[n].Offset, 0)
	}
	var failed error
	ends, err := b.ReadBack(ctx, from, func(in *broker.Incoming) {
		if failed != nil {
			return
		}
		if err := add(in); err != nil {
			at := in.Position()
			failed = fmt.Errorf("read %s/%d at offset %d: %w", at.Stream, at.Partition, in.Offset, err)
		}
	})
	if err == nil {
		err = failed
	}
	return ends, err
}

// Renewal says when records that have waited for long are written again. Such a
// record keeps the mark where it is, while later ones come and go. Without a renewal
// a rebuild would read more and more, and retention could cut the record.
type Renewal struct {
	Least int // shortest log, in records from the mark to the end, that is worth a renewal
	Share int // least ratio of the log's length to the number of waiting records
}

const (
	// RenewRecords is the largest number of records that are renewed at once.
	RenewRecords = 4 << 10
	// RenewBytes is the largest size of the records that are renewed at once.
	RenewBytes = 8 << 20
)

// Due reports whether the oldest waiting records should be renewed. patience is the
// length of the log when a renewal was last impossible; otherwise 0.
func (r Renewal) Due(length, waiting, patience int) bool {
	return waiting > 0 && length >= patience+r.Least && length >= r.Share*waiting
}
