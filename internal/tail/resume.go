package tail

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev/broker"
)

// resume is the hook that moves partitions from their beginning to where an
// earlier reader left off. What lies there no more is told before anything else:
// below the stream's start retention was faster than the reader, and beyond its
// end the log is not the one that was read, so reading goes on at the end, as it
// does when that happens under way. It is called again for partitions that are
// added; those are read from their beginning, whatever an earlier stream of this
// name had there.
func (r *Reader) resume(from Place) func(context.Context, []broker.Position) ([]broker.Position, error) {
	from = from[:min(len(from), len(r.ends))]
	r.from = from
	return func(_ context.Context, starts []broker.Position) ([]broker.Position, error) {
		for i := range starts {
			p := &starts[i]
			if int(p.Partition) >= len(from) || from[p.Partition] == Beginning {
				continue
			}
			at, start, end := from[p.Partition], p.Offset, r.ends[p.Partition]
			switch {
			case at < start:
				r.gone(p.Partition, at, start, fmt.Errorf("offsets %d to %d were deleted before they were read: the stream's retention is shorter than this reader's delay", at, start-1))
			case at > end:
				p.Offset = end
				r.gone(p.Partition, at, end, fmt.Errorf("the log ends at %d, before offset %d that was reached: the stream was made anew, or a server without all events leads it", end, at))
			default:
				p.Offset = at
			}
		}
		return starts, nil
	}
}

func (r *Reader) gone(partition int32, at, next int64, reason error) {
	r.gaps = append(r.gaps, Event{Stream: r.stream, Partition: partition, Offset: at, Next: next, Received: time.Now(), Err: reason})
}
