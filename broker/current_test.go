package broker

import (
	"errors"
	"testing"
)

// What a transaction took back is not current any more, and comes again.
func TestCurrent(t *testing.T) {
	_, b, x, d := openTransaction(t)
	if !d.Current() {
		t.Error("what Poll has just returned is not current")
	}
	failed := errors.New("no")
	if err := x.Do(t.Context(), func(tx *Tx) error { tx.Done(d); return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if d.Current() {
		t.Error("what was taken back is still current")
	}
	again, err := x.c.Poll(t.Context())
	if err != nil || !again.Current() {
		t.Errorf("it came again as current: %v, %v", err == nil && again.Current(), err)
	}
	again.Done()
	if n := x.c.Stats().Assigned; n != 1 {
		t.Errorf("%d partitions are assigned", n)
	}
	none, err := b.Committed(t.Context(), "never-was", []Position{{Stream: "events"}})
	if err != nil || none[0].Offset != -1 {
		t.Errorf("a group that never was has come to %v, %v", none, err)
	}
}
