package deliver

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// pass ends a key where the events end now.
func (w *install) pass(key string) {
	w.Helper()
	ends, err := w.b.Ends(w.ctx, tidemill.StreamEvents)
	w.must(err)
	d := tidemill.KeyPassedData{Ends: map[string][]int64{tidemill.StreamEvents: make([]int64, len(ends))}}
	for _, e := range ends {
		d.Ends[tidemill.StreamEvents][e.Partition] = e.Offset
	}
	data, err := json.Marshal(d)
	w.must(err)
	v := broker.View{ID: key, Source: "/test", Type: tidemill.TypeKeyPassed, Subject: key, Data: data, DataContentType: "application/json"}
	_, err = w.p.Publish(w.ctx, tidemill.StreamActs, &v)
	w.must(err)
}

// What waits for a key that has gone is not delivered when its time comes, and
// becomes no dead letter; other keys get all of theirs, and so does the key's next
// life. That holds for a dispatcher that comes later, too.
func TestAKeyThatHasGoneGetsNothing(t *testing.T) {
	for name, restart := range map[string]bool{"goes on": false, "comes later": true} {
		t.Run(name, func(t *testing.T) {
			w := newInstall(t, 2)
			to := newSink(t, func(string, int) int { return 503 })
			w.trigger("a", to.url, func(t *config.Trigger) {
				t.Delivery.Attempts = 1000
				t.Delivery.Backoff.First = 300 * time.Millisecond
			})
			d := w.open()
			w.publish(100, 10) // ten of each key
			w.until("all is parked", func() bool { return parkedOf(d, "a") == 100 && w.committed() })
			if restart {
				w.close(d)
			}
			w.pass("k3")
			w.publish(10, 10) // one more of each
			if restart {
				d = w.open()
			}
			w.until("it has been heard", func() bool {
				return d.acts.Now().Passed("k3", "order", tidemill.StreamEvents, 0, 0) || d.acts.Now().Passed("k3", "order", tidemill.StreamEvents, 1, 0)
			})
			to.set(nil)
			w.until("nothing is parked", func() bool { return to.count() >= 100 && parkedOf(d, "a") == 0 })
			to.inOrder()
			to.mu.Lock()
			defer to.mu.Unlock()
			if got := to.byKey["k3"]; !slices.Equal(got, []string{"103"}) {
				t.Errorf("the key that has gone got %v", got)
			}
			if got := len(to.byKey["k4"]); got != 11 {
				t.Errorf("another key got %d events", got)
			}
			if all := w.letters(); len(all) > 0 {
				t.Errorf("there are %d dead letters", len(all))
			}
		})
	}
}
