package follow

import (
	"context"

	"tidemill.dev/broker"
)

// ReadToEnd reads with an open reader up to the present end of its stream, and calls fn with each event. The reader can
// go on from there later.
func ReadToEnd(ctx context.Context, b *broker.Broker, stream string, r *Reader, fn func(*Event)) error {
	ends, err := b.Ends(ctx, stream)
	if err != nil {
		return err
	}
	for !covers(r.Place(), ends) {
		events, err := r.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].Err == nil {
				fn(&events[i])
			}
		}
	}
	return nil
}

// covers reports whether a place is at or after the ends of a stream.
func covers(at Place, ends []broker.Position) bool {
	for _, end := range ends {
		if end.Offset > 0 && (int(end.Partition) >= len(at) || at[end.Partition] < end.Offset) {
			return false
		}
	}
	return true
}
