package deliver

import (
	"context"

	"tidemill.dev"
)

// findAsked finds streams that no trigger reads any more, and from where dead
// letters are to be replayed. Called with the lock held.
func (d *Dispatcher) findAsked(ctx context.Context) {
	acts := d.acts.Now()
	for _, act := range acts.LetterReplays(d.heard) {
		for _, stream := range act.Streams {
			if _, known := d.config.Stream(stream); d.plans[stream] != nil || !known {
				continue
			}
			if _, err := d.o.Broker.Ends(ctx, tidemill.Parked(stream)); err != nil {
				d.o.Logger.Warn("dead letters cannot be replayed", "stream", stream, "reason", err)
				continue // no trigger ever read it
			}
			d.plans[stream] = deserted()
		}
	}
	d.heard = acts.Next()
}
