//go:build slow

package score

import (
	"fmt"
	"testing"

	"tidemill.dev/broker"
)

// A million waiting events use memory for the index, and for contents only up to the limit. The
// memory is freed afterwards.
func TestAMillionThatWaitAreAnIndex(t *testing.T) {
	const events, keys, allowed = 1_000_000, 1000, 8
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("bot-%d", i)
	}
	before := inUse()
	h := openHeld(nil, parkedStream, 0, heldOptions{Kept: 1 << 20})
	var to numbered
	v := broker.View{ID: "some-id", Source: "/test", Type: "message", Data: make([]byte, 1024)}
	for i := range events {
		key := names[i%keys]
		h.parkEvent(t.Context(), &to, key, &v, int64(i))
		h.committed(int64(i) + 1)
	}
	each := (inUse() - before) / events
	t.Logf("%d events of %d keys take %.1f bytes each", h.count(), keys, each)
	if each > allowed {
		t.Errorf("each takes %.1f bytes, allowed are %d", each, allowed)
	}
	returnAll(t, h, &to)
	if n := h.needed.Len(); n != 0 || len(h.models) != 0 || len(h.keys) != 0 || h.kept.Size() != 0 {
		t.Errorf("when all have been returned %d entries, %d models and %d keys are left, and %d bytes of contents", n, len(h.models), len(h.keys), h.kept.Size())
	}
}

func TestNothingIsLostOrDoubledByCrashesUnderLoad(t *testing.T) { crashRounds(t, 2000) }
