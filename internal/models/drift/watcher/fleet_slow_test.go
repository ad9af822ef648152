//go:build slow

package watcher

import (
	"runtime"
	"testing"
	"time"

	"tidemill.dev/broker"
)

// The state of 20,000 models with six figures takes at most 40 MB, in memory and in the store, and is written and
// read in seconds.
func TestAFleetIsKept(t *testing.T) {
	const models = 20_000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	f := newFeed(t, func(*broker.View) {})
	for i := range models {
		f.message(newBot(i), 1)
	}
	inMemory := heap() - before
	begun := time.Now()
	state, err := f.w.encode()
	if err != nil {
		t.Fatal(err)
	}
	wrote := time.Since(begun)
	next := newWatcher(f.w.Options)
	begun = time.Now()
	if _, err := next.decode(state); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.1f MB in memory, %.1f MB in the store, written in %v and read in %v", float64(inMemory)/1e6, float64(len(state))/1e6, wrote, time.Since(begun))
	if len(next.models) != models {
		t.Errorf("%d models were read", len(next.models))
	}
	if inMemory > 40e6 || len(state) > 40e6 {
		t.Errorf("%d bytes in memory, %d in the store: 40 MB are promised", inMemory, len(state))
	}
	runtime.KeepAlive(f)
}
