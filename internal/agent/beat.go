package agent

import (
	"context"
	"time"

	"tidemill.dev/internal/api"
)

// beat says every few seconds that the attempt is there, and hears whether it is
// still wanted. One that takes no longer than that says nothing. The result ends
// it, and waits.
func (a *attempt) beat() (stop func()) {
	every := time.Duration(a.order.BeatSeconds * float64(time.Second))
	if every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(a.ends.dead)
	done := make(chan struct{})
	t := time.AfterFunc(every, func() {
		defer close(done)
		a.beatOn(ctx, every)
	})
	return func() {
		cancel()
		if !t.Stop() {
			<-done
		}
	}
}

func (a *attempt) beatOn(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		var b api.Beat
		err := a.door.once(ctx, max(every, time.Second), said{"/beat", jsonType, []byte("{}")}, into(&b))
		if err == nil && b.Cancel != "" {
			a.ends.end(&cancelled{b.Cancel})
		}
		select { // one that failed is made good by the next
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
