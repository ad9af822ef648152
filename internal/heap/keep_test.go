package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// A process that has allocated much holds the block, and once it does not any more
// neither the block nor the garbage. Nobody else collects meanwhile.
func TestKeep(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	synctest.Test(t, func(t *testing.T) {
		const block = 512 << 20
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			Keep(ctx, block)
		}()
		synctest.Wait()
		before := allocated()
		garbage := weak.Make(litter())
		time.Sleep(lookEvery + lookEvery/2)
		if now := allocated(); now < before+block {
			t.Errorf("the heap has %d bytes, and had %d: it holds no block of %d", now, before, block)
		}
		if garbage.Value() == nil {
			t.Fatal("the garbage has gone by itself, so this shows nothing")
		}
		time.Sleep(2 * calm * lookEvery)
		if now := allocated(); now >= before+block {
			t.Errorf("the heap has %d bytes and had %d: the block of %d is still held", now, before, block)
		}
		if garbage.Value() != nil {
			t.Error("the garbage has not been collected")
		}
		stop()
		<-ended
	})
}

// litter makes much garbage, some of which can be told by.
//
//go:noinline
func litter() *[2 * much]byte { return new([2 * much]byte) }

func allocated() uint64 {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return now.HeapAlloc
}
