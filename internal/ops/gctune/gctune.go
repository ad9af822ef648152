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
// and the block counts as heap, so it runs less often. The block takes address space but no memory,
// because its pages are never touched. Its cost is uncollected garbage, at most as large as the
// block; with a higher GC percentage, that garbage would grow with the heap. If block is 0, there
// is no block. Once the process allocates little, Keep drops the block, collects the garbage and
// returns the memory.
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
		switch p.look(samples[0].Value.Uint64(), samples[1].Value.Uint64()) {
		case hold:
			held = make([]byte, block)
		case rest:
			held = nil
			debug.FreeOSMemory()
		}
	}
}

const (
	// much is the number of bytes allocated between two looks from which the collector would run
	// more than once, because the live heap is at least about half of it.
	much = 16 << 20
	// calm is the number of looks without much allocation after which a process is at rest. It is
	// also the least number of looks between two returns of memory.
	calm = 10
	// worth is the number of bytes that must have been allocated before memory is returned. For a
	// larger live heap, it is an eighth of that heap, because a collection takes time in proportion
	// to it.
	worth = 4 << 20
)

// move is the action after a look.
type move int8

const (
	stay move = iota
	hold      // allocate the block, so that the collector runs less often
	rest      // drop the block, collect the garbage and return the memory
)

// pace measures how fast a process allocates.
type pace struct {
	last     uint64 // bytes allocated until the last look
	returned uint64 // bytes allocated until memory was last returned
	quiet    int    // looks since much was allocated, or memory returned
	busy     bool
}

// newPace starts at the bytes allocated so far. They count as not returned, so that the garbage of
// the start is collected.
func newPace(allocated uint64) *pace { return &pace{last: allocated} }

// look takes the bytes allocated since the process started, and the live bytes after the last
// collection.
func (p *pace) look(allocated, alive uint64) move {
	made := allocated - p.last
	p.last = allocated
	if made >= much {
		p.quiet = 0
		if p.busy {
			return stay
		}
		p.busy = true
		return hold
	}
	if p.quiet++; p.quiet < calm || !p.busy && allocated-p.returned < max(worth, alive/8) {
		return stay
	}
	p.quiet, p.busy, p.returned = 0, false, allocated
	return rest
}
