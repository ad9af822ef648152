package warm

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Wait waits for an offer for a pod until the context ends or d has passed; it
// is false where none came. It counts what it waited.
//
// An offer is the pod's until that attempt speaks for itself (Begun): who was cut off
// while it was told asks again, at any gateway, and hears the same. Who asks later is
// told to leave. A pod whose
// caller has gone is struck out at once, so that nothing is given to nobody; one
// that was taken by then may still be given something, and hears of it if it
// asks again.
func (b *Book) Wait(ctx context.Context, p Pod, d time.Duration) (Offer, bool, error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	w := &wait{b: b, pod: p, from: time.Now()}
	until := w.from.Add(d)
	for ctx.Err() == nil && time.Now().Before(until) {
		if o, ok := w.look(ctx); ok {
			return o, true, nil
		}
		pause(ctx, min(w.pace(), time.Until(until)))
	}
	return w.leave(ctx)
}

// wait is one that waits.
type wait struct {
	b    *Book
	pod  Pod
	from time.Time // counted so far
	err  error     // of the last look
}

// pace is how long it is until the next look. Many look less often: what they
// cost Redis together is bounded.
func (w *wait) pace() time.Duration {
	if w.err != nil {
		return lookSlowly
	}
	return min(max(lookEvery, time.Duration(w.b.waiting.Load())*lookShare), lookSlowly)
}

// look writes down that the pod waits, and sees whether it has an offer.
func (w *wait) look(ctx context.Context) (o Offer, ok bool) {
	p, now := &w.pod, time.Now()
	is, err := w.b.run(ctx, scriptWait, p.entry(), p.Attempt, p.Pool, p.Shape, p.GPUs, now.Sub(w.from).Milliseconds(), fresh.Milliseconds())
	if w.err = err; err != nil {
		return o, false // Redis may be back with the next
	}
	w.from = now
	o, ok, w.err = offerOf(is)
	return o, ok
}

// leave strikes the pod out. One that somebody has taken is about to be given
// something, and waits a moment more.
func (w *wait) leave(ctx context.Context) (o Offer, ok bool, err error) {
	for until := time.Now().Add(takenFor); ; {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		is, err := w.b.run(limited, scriptLeave, w.pod.entry(), w.pod.Attempt, int64(w.pod.GPUs)*time.Since(w.from).Milliseconds(), w.pod.Pool)
		cancel()
		if err != nil {
			return o, false, fmt.Errorf("strike out pod %s: %w", w.pod.Name, err)
		}
		w.from = time.Now()
		taken := len(is) == 1 && is[0] == "taken"
		if !taken {
			o, ok, err = offerOf(is)
			return o, ok && ctx.Err() == nil, err
		}
		if ctx.Err() != nil || time.Now().After(until) {
			return o, false, nil
		}
		pause(ctx, lookEvery)
	}
}

// offerOf reads what a script says of a pod's offer: one text, or none.
func offerOf(is []string) (o Offer, ok bool, err error) {
	if len(is) == 0 {
		return o, false, nil
	}
	if err := json.Unmarshal([]byte(is[0]), &o); err != nil {
		return o, false, fmt.Errorf("read what a pod is given: %w", err)
	}
	return o, true, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
