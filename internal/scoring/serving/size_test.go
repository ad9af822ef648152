package serving

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// Twenty thousand slots with serving models use at most six megabytes, without the models.
func TestASlotIsSmall(t *testing.T) {
	w := newWorld(t, 0)
	const models = 20_000
	names := make([]string, models)
	for i := range names {
		names[i] = fmt.Sprint("intent/bot-", i)
		w.champions[names[i]] = champions.Champion{Version: 1, Turn: 1}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for _, name := range names {
		w.models.Slot(name)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int(after.HeapAlloc)-int(before.HeapAlloc))/models + int(unsafe.Sizeof(infer.Ref{})) // reference to the serving version
	if t.Logf("%d bytes", each); each > 300 {
		t.Errorf("a slot costs %d bytes", each)
	}
	runtime.KeepAlive(w)
}
