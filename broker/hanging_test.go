package broker

import (
	"testing"
	"time"
	"unsafe"
)

// A failure is later than an earlier search, also if the clock was set back in between.
func TestHangingTransactionsAreLookedForAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	b, c := openFake(t)
	x := &transaction{b: b, id: "t", checkedID: "t", checked: setBack(time.Now().Add(30*time.Minute), time.Hour)}
	if x.maybeHanging() {
		t.Error("no request has failed, and it looks for hanging transactions")
	}
	c.Close()
	if _, err := b.metadata(t.Context()); err == nil {
		t.Fatal("a server that is closed answers")
	}
	if !x.maybeHanging() {
		t.Error("it does not look for hanging transactions")
	}
}

// setBack returns a time that was read before the clock was set back. Its monotonic part is behind by as much.
func setBack(at time.Time, by time.Duration) time.Time {
	(*struct {
		wall      uint64
		monotonic time.Duration
		loc       *time.Location
	})(unsafe.Pointer(&at)).monotonic -= by
	return at
}
