package parked

import "tidemill.dev/broker"

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
