package gctune

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// lookEvery is the interval at which the allocated bytes are read.
const lookEvery = time.Second

// Keep tunes the collector until the context ends. While the process allocates much, Keep holds a
// block of block bytes that is never read or written. The collector runs when the heap has doubled,
// and the block counts as heap, so the collector runs less often. The block takes address space but
// no memory, because its pages are never touched. The cost of the block is uncollected garbage, at
// most as large as the block. With a higher GC percentage instead, that garbage would grow with the
// heap. If block is 0, there is no block. Once the process allocates little, Keep drops the block,
// collects the garbage and returns the memory.
func Keep(ctx context.Context, block int) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	p := newPace(samples[0].Value.Uint64())
	var held []byte
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(samples)
		runtime.KeepAlive(held) // the block must stay reachable until here
		switch p.observe(samples[0].Value.Uint64(), samples[1].Value.Uint64()) {
		case hold:
			held = make([]byte, block)
		case rest:
			held = nil
			debug.FreeOSMemory()
		}
	}
}

const (
	// muchAllocated is the least number of bytes allocated between two looks that counts as much.
	// With so many, the collector would run more than once, because the live heap is at least about
	// half of this number.
	muchAllocated = 16 << 20
	// calmLooks is the number of looks without much allocation after which a process is at rest. It
	// is also the least number of looks between two returns of memory.
	calmLooks = 10
	// minReturned is the number of bytes that must have been allocated before memory is returned.
	// For a larger live heap, it is an eighth of that heap, because a collection takes time in
	// proportion to it.
	minReturned = 4 << 20
)

// lookAction is the action after a look.
type lookAction int8

const (
	stay lookAction = iota
	hold            // allocate the block, so that the collector runs less often
	rest            // drop the block, collect the garbage and return the memory
)

// allocationPace measures how fast a process allocates.
type allocationPace struct {
	last     uint64 // bytes allocated until the last look
	returned uint64 // bytes allocated until memory was last returned
	quiet    int    // looks since much was allocated, or memory returned
	busy     bool
}

// newPace starts at the bytes allocated so far. They count as not returned, so that the garbage of
// the start is collected.
func newPace(allocated uint64) *allocationPace { return &allocationPace{last: allocated} }

// observe takes the bytes allocated since the process started, and the live bytes after the last
// collection.
func (p *allocationPace) observe(allocated, alive uint64) lookAction {
	made := allocated - p.last
	p.last = allocated
	if made >= muchAllocated {
		p.quiet = 0
		if p.busy {
			return stay
		}
		p.busy = true
		return hold
	}
	if p.quiet++; p.quiet < calmLooks || !p.busy && allocated-p.returned < max(minReturned, alive/8) {
		return stay
	}
	p.quiet, p.busy, p.returned = 0, false, allocated
	return rest
}
