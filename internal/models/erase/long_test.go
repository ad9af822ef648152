//go:build slow

package erase

import (
	"context"
	"fmt"
	"testing"

	"tidemill.dev"
)

// TestCutOffAnywhere stops the work at each step and at each write to the store. Another forgetter
// continues, with the same result.
func TestCutOffAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var want string
	for at, cut := 0, true; cut; at++ { // no point has the number 0
		key := fmt.Sprintf("bot-%03d", at)
		live := w.fillKey(key)
		w.append(tidemill.TypeRunCancelled, "intent", key, live, tidemill.RunCancelledData{})
		w.finish("intent", key, live)
		o, n := w.order(key), 0
		ctx, cancel := context.WithCancel(w.within())
		w.watched(func() {
			if n++; n == at {
				cancel()
			}
		})
		got, err := w.forgetter().Forget(ctx, o)
		w.watched(nil)
		cut = n >= at // whether the point was reached
		cancel()
		if err != nil {
			got, err = w.forgetter().Forget(w.within(), o)
			w.must(err)
		}
		w.isGone(key)
		if at == 0 {
			want = receiptText(got, key)
		}
		if receiptText(got, key) != want {
			t.Errorf("cut off at %d the receipt is\n%s\nand not\n%s", at, receiptText(got, key), want)
		}
		if !cut {
			t.Logf("cut off at %d points", at-1)
		}
	}
}
