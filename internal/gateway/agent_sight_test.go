package gateway

import (
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// A run that ends before its node reports its container keeps the digest of its image: its
// end waits for the controller's report.
func TestAnEndWaitsForWhatTheControllerSees(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("boxed", "bot-1")
	ended := make(chan tidemill.RunState, 1)
	go func() {
		var done api.Finished
		a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeFailed, Permanent: true, Reason: "quick", Inside: true}, &done)
		ended <- done.State
	}()
	m.waitUntil("the end is being told", func() bool { return m.gateway.room.takenBytes() > 0 })
	m.must(m.foreman.Seen(t.Context(), m.runOf(a.run), 1, tidemill.RunSeen{Where: tidemill.Where{Node: "gpu-1", Image: "sha256:1"}}))
	if state := <-ended; state != tidemill.RunFailed {
		t.Errorf("it is %s", state)
	}
	if w := m.runOf(a.run).Attempts[0].Where; w.Image != "sha256:1" || w.Node != "gpu-1" {
		t.Errorf("it was at %+v", w)
	}
}

// Without a controller's report, the end is published anyway.
func TestAnEndDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	m := newMill(t, func(o *Options) { o.Limits.Sight = 100 * time.Millisecond })
	a := m.beginRun("boxed", "bot-1")
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeFailed, Permanent: true, Reason: "quick", Inside: true}, &done)
	if done.State != tidemill.RunFailed {
		t.Errorf("%+v", done)
	}
}
