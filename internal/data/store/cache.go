package store

import (
	"container/list"
	"sync"
)

// cachedBytes bounds what the nodes in memory take, by estimate.
const cachedBytes = 32 << 20

// nodeCache keeps the nodes that were used last. A node never changes, so
// nothing is ever out of date.
type nodeCache struct {
	lock   sync.Mutex
	most   int
	used   int
	newest *list.List // of *cached
	all    map[string]*list.Element
}

type cached struct {
	digest string
	node   *node
	cost   int
}

func newNodeCache(most int) *nodeCache {
	return &nodeCache{most: most, newest: list.New(), all: map[string]*list.Element{}}
}

func (c *nodeCache) get(digest string) *node {
	c.lock.Lock()
	defer c.lock.Unlock()
	e := c.all[digest]
	if e == nil {
		return nil
	}
	c.newest.MoveToFront(e)
	return e.Value.(*cached).node
}

func (c *nodeCache) add(digest string, n *node) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.all[digest] != nil {
		return
	}
	k := &cached{digest, n, n.cost()}
	c.all[digest] = c.newest.PushFront(k)
	c.used += k.cost
	for c.used > c.most && c.newest.Len() > 1 {
		oldest := c.newest.Remove(c.newest.Back()).(*cached)
		delete(c.all, oldest.digest)
		c.used -= oldest.cost
	}
}

// cost is about what a node takes in memory.
func (n *node) cost() int {
	cost := 256
	for _, f := range n.files {
		cost += 160 + len(f.Path) + 96*len(f.Parts)
	}
	for _, k := range n.kids {
		cost += 128 + len(k.last)
	}
	return cost
}
