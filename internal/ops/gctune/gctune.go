package gctune

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// lookEvery is how often it is looked how much has been allocated.
const lookEvery = time.Second

// Keep looks after the heap of the process until the context ends. While much is
// allocated it holds a block of so many bytes that nobody reads or writes. The
// collector runs when the heap has doubled, and the block counts as heap. It takes
// address space and no memory, since its pages are never touched; what it costs is
// the garbage that waits, bounded by its size, which a percentage of a heap that
// has grown would not be. 0 is no block.
//
// Once little is allocated the block is let go of, and the garbage is collected and
// its memory returned.
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
		runtime.KeepAlive(held) // until here, or it would be garbage at once
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
	// much is what is allocated between two looks by a process whose collector
	// would run more than once: the least that is ever alive is about half of it.
	much = 16 << 20
	// calm is after how many looks without that a process has come to rest, and how
	// many lie between two returns of memory.
	calm = 10
	// worth is how much has to have been allocated for memory to be returned; of a
	// heap in which more than eight times that is alive, an eighth of that. To
	// collect takes time that goes by what is alive.
	worth = 4 << 20
)

// move is what is to be done after a look.
type move int8

const (
	stay move = iota
	hold      // have garbage come together
	rest      // collect it, and return its memory
)

// pace is how fast a process allocates.
type pace struct {
	last     uint64 // bytes allocated until the last look
	returned uint64 // until memory was last returned
	quiet    int    // looks since much was allocated, or memory returned
	busy     bool
}

// newPace begins with what has been allocated until now. What a start has left
// behind is to be returned.
func newPace(allocated uint64) *pace { return &pace{last: allocated} }

// look takes in how much has been allocated in the process's life, and how much
// was alive after the last collection.
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
