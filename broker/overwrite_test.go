//go:build race

package broker

import (
	"slices"
	"strings"
	"testing"
)

func TestOverwrite(t *testing.T) {
	for n := range 20 {
		b := make([]byte, n, 32)
		overwrite(b)
		if slices.ContainsFunc(b, func(c byte) bool { return c != 0xdb }) || slices.Contains(b[:32][n:], 0xdb) {
			t.Errorf("of %d bytes: %x", n, b[:32])
		}
	}
}

// With the race detector, a kept event or a string of one is overwritten in every test.
func TestWhatIsKeptOfAnEventIsSpoilt(t *testing.T) {
	h := newHostile(t, 1)
	p, err := h.b.Producer(ProducerOptions{})
	h.must(err)
	told := make(chan error, 1)
	p.SendTo(h.ctx(), "events", 0, hostileEvent(7), func(_ Receipt, err error) { told <- err })
	h.must(<-told)
	h.must(p.Close(h.ctx()))
	var kept *Incoming
	var id, cloned string
	keep := func(e *Incoming) { kept, id, cloned = e, e.ID, strings.Clone(e.ID) }
	spoilt := func(how string) {
		t.Helper()
		if kept == nil || kept.ID != "" || id != "\xdb" || cloned != "7" {
			t.Errorf("%s: kept %q of %q", how, id, cloned)
		}
		kept = nil
	}
	_, err = h.b.Read(h.ctx(), Position{Stream: "events"}, 1<<20, func(e *Incoming) bool { keep(e); return true })
	h.must(err)
	spoilt("Read")
	_, err = h.b.ReadBack(h.ctx(), []Position{{Stream: "events"}}, keep)
	h.must(err)
	spoilt("ReadBack")
}
