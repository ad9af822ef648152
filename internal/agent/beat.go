package agent

import (
	"context"
	"time"

	"tidemill.dev/internal/api"
)

// beat says every few seconds that the attempt is there, and hears whether it is
// still wanted. One that is alone and takes no longer than that says nothing;
// those that work together have to be heard at once. The result ends it, and
// waits.
func (a *attempt) beat() (stop func()) {
	every := time.Duration(a.order.BeatSeconds * float64(time.Second))
	if every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(a.ends.dead)
	done := make(chan struct{})
	first := every
	if !a.party.alone() {
		first = 0
	}
	t := time.AfterFunc(first, func() {
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
	for {
		_ = a.beatOnce(ctx, max(every, time.Second)) // one that failed is made good by the next
		t := time.NewTimer(a.party.pace(every))
		select {
		case <-a.party.changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// beatOnce beats, and heeds what it hears. Who is telling of the end may hear that
// the attempt counts no more because it has just been told of: what is true then,
// the answer to that says.
func (a *attempt) beatOnce(ctx context.Context, within time.Duration) error {
	var b api.Beat
	door := *a.door
	door.gone = func() {
		if !a.telling.Load() {
			a.door.gone()
		}
	}
	if err := door.once(ctx, within, said{"/beat" + a.party.says(), jsonType, nil}, into(&b)); err != nil {
		return err
	}
	if b.Cancel != "" {
		a.ends.end(&cancelled{b.Cancel})
	}
	a.party.hears(&b)
	if b.End && !a.party.first() {
		a.ends.end(errOver)
	}
	return nil
}
