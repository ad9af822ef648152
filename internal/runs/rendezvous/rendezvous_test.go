package rendezvous

import (
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// world holds the rolls of two gateways, for an attempt of three parts.
type world struct {
	*testing.T
	server *miniredis.Miniredis
	rolls  [2]*Roll
	asked  int
}

func newWorld(t *testing.T) *world {
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &world{T: t, server: miniredis.RunT(t)}
	for i := range h.rolls {
		client := redis.NewClient(&redis.Options{Addr: h.server.Addr(), Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = client.Close() })
		h.rolls[i] = NewRoll(client, names, "kafka-1")
	}
	return h
}

// report reports for one part, at each gateway in turn.
func (h *world) report(part, state, want string) {
	h.Helper()
	h.asked++
	is, err := h.rolls[h.asked%2].Say(h.Context(), "run1-1", 3, Word{Part: part, Ready: state != "", Over: state == "over"})
	if got := fmt.Sprintf("all=%t end=%t alone=%t", is.All, is.End, is.Alone); err != nil || got != want {
		h.Errorf("%s says %q and hears %s, %v; want %s", part, state, got, err, want)
	}
}

const (
	nothing = "all=false end=false alone=false"
	all     = "all=true end=false alone=false"
	end     = "all=true end=true alone=false"
)

// The parts begin only when all parts are ready. The answers tell the other parts that the first
// has ended, and the first part that all others have ended.
func TestTheyBeginAndEndTogether(t *testing.T) {
	h := newWorld(t)
	h.report("w0", "", nothing)
	h.report("w0", "ready", nothing)
	h.report("ps0", "ready", nothing)
	h.report("w1", "", nothing) // the part has started and fetches its inputs
	h.report("ps0", "ready", nothing)
	h.report("w1", "ready", all)
	h.report("w0", "ready", all)
	h.report("ps0", "ready", all)
	h.report("w0", "over", end)
	h.report("w1", "ready", end)
	h.report("w1", "over", end)
	h.report("ps0", "over", "all=true end=true alone=true")
	h.report("w0", "over", "all=true end=true alone=true")
}

// If a part ends before another part knows that all parts are ready, the other part begins too.
func TestWhoIsQuickHoldsUpNobody(t *testing.T) {
	h := newWorld(t)
	h.report("w0", "ready", nothing)
	h.report("ps0", "ready", nothing)
	h.report("w1", "ready", all)
	h.report("w1", "over", all)
	h.report("w0", "ready", all)
}

// After a flush of Redis, the next beats restore the reports.
func TestAFlushHeals(t *testing.T) {
	h := newWorld(t)
	h.report("w0", "ready", nothing)
	h.report("w1", "ready", nothing)
	h.server.FlushAll()
	h.report("ps0", "ready", nothing)
	h.report("w0", "ready", nothing)
	h.report("w1", "ready", all)
	h.server.FlushAll()
	h.report("w0", "over", "all=false end=true alone=false")
	h.report("ps0", "over", "all=false end=true alone=false")
	h.report("w1", "over", "all=true end=true alone=true")
}

// Attempts do not affect each other, and their entries expire.
func TestAttemptsAreApart(t *testing.T) {
	h := newWorld(t)
	for _, part := range []string{"w0", "w1", "ps0"} {
		if _, err := h.rolls[0].Say(t.Context(), "run2-1", 3, Word{Part: part, Ready: true}); err != nil {
			t.Fatal(err)
		}
	}
	h.report("w0", "ready", nothing)
	h.server.FastForward(kept)
	if keys := h.server.Keys(); len(keys) > 0 {
		t.Errorf("there is still %v", keys)
	}
	h.server.SetError("it is away")
	if _, err := h.rolls[0].Say(t.Context(), "run1-1", 3, Word{Part: "w0"}); err == nil {
		t.Error("no error")
	}
}
