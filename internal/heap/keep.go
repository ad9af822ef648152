package heap

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
