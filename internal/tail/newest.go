package tail

import (
	"context"

	"tidemill.dev/broker"
)

// newest is the hook that moves partitions forward, to where no more than so
// many records are left before their end.
func (r *Reader) newest(each int64) func(context.Context, []broker.Position) ([]broker.Position, error) {
	return func(_ context.Context, starts []broker.Position) ([]broker.Position, error) {
		for i := range starts {
			p := &starts[i]
			p.Offset = max(p.Offset, r.ends[p.Partition]-each)
		}
		return starts, nil
	}
}
