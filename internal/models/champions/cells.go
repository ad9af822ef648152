package champions

import (
	"hash/maphash"
	"maps"
	"sync/atomic"

	"tidemill.dev"
)

// shards are as many as keep each map small: it is copied for every new name, so
// that nobody who reads waits.
const shards = 256

// cells are the models by name. One goroutine changes them, and anybody reads.
type cells struct {
	seed   maphash.Seed
	shards [shards]atomic.Pointer[map[string]*cell]
}

// cell is one model.
type cell struct {
	now   atomic.Pointer[Champion] // nil is none
	state state                    // of the goroutine that changes it
}

func newCells() *cells { return &cells{seed: maphash.MakeSeed()} }

func (c *cells) shard(name string) *atomic.Pointer[map[string]*cell] {
	return &c.shards[maphash.String(c.seed, name)%shards]
}

// find is a model's cell; nil if no fact has been about it.
func (c *cells) find(name string) *cell {
	if all := c.shard(name).Load(); all != nil {
		return (*all)[name]
	}
	return nil
}

// of is a model's cell, which is made if need be.
func (c *cells) of(name string) *cell {
	if found := c.find(name); found != nil {
		return found
	}
	shard := c.shard(name)
	grown := map[string]*cell{}
	if all := shard.Load(); all != nil {
		grown = maps.Clone(*all)
	}
	made := &cell{}
	grown[name] = made
	shard.Store(&grown)
	return made
}

// add makes many cells at once.
func (c *cells) add(all map[string]state) {
	var fresh [shards]map[string]*cell
	for name := range all {
		if c.find(name) != nil {
			continue
		}
		i := maphash.String(c.seed, name) % shards
		if fresh[i] == nil {
			fresh[i] = map[string]*cell{}
			if old := c.shards[i].Load(); old != nil {
				fresh[i] = maps.Clone(*old)
			}
		}
		fresh[i][name] = &cell{}
	}
	for i := range fresh {
		if fresh[i] != nil {
			c.shards[i].Store(&fresh[i])
		}
	}
}

// each calls fn with every cell.
func (c *cells) each(fn func(name string, of *cell)) {
	for i := range c.shards {
		if all := c.shards[i].Load(); all != nil {
			for name, of := range *all {
				fn(name, of)
			}
		}
	}
}

// show lets everybody see who is the champion. It tells whether that is another
// version.
func (c *cell) show(m *tidemill.Model) (now Champion, changed bool) {
	var before Champion
	if old := c.now.Load(); old != nil {
		before = *old
	}
	if m.Champion != 0 {
		now = Champion{Version: m.Champion, Previous: m.Previous, Turn: m.Turn, Artifact: c.state.artifact(m.Champion), Key: m.Key}
	}
	switch {
	case now == before:
	case now.Version == 0:
		c.now.Store(nil)
	default:
		c.now.Store(&now)
	}
	return now, now.Version != before.Version
}
