package parked

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev/broker"
)

// Rebuild reads parked logs from their marks to their ends. A mark below 0 means that
// the log is read from its beginning. It waits for records that a predecessor's
// transaction may still be about to make visible: see [broker.Broker.ReadBack]. It
// returns where each log ended, and the first error of add.
func Rebuild(ctx context.Context, b *broker.Broker, marks []broker.Position, add func(*broker.Incoming) error) ([]broker.Position, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	from := slices.Clone(marks)
	for n := range from {
		from[n].Offset = max(from[n].Offset, 0)
	}
	var failed error
	ends, err := b.ReadBack(ctx, from, func(in *broker.Incoming) {
		if failed != nil {
			return
		}
		if err := add(in); err != nil {
			at := in.Position()
			failed = fmt.Errorf("read %s/%d at offset %d: %w", at.Stream, at.Partition, in.Offset, err)
		}
	})
	if err == nil {
		err = failed
	}
	return ends, err
}

// Renewal says when records that have waited for long are written again. Such a
// record keeps the mark where it is, while later ones come and go. Without a renewal
// a rebuild would read more and more, and retention could cut the record.
type Renewal struct {
	Least int // shortest log, in records from the mark to the end, that is worth a renewal
	Share int // least ratio of the log's length to the number of waiting records
}

const (
	// RenewRecords is the largest number of records that are renewed at once.
	RenewRecords = 4 << 10
	// RenewBytes is the largest size of the records that are renewed at once.
	RenewBytes = 8 << 20
)

// Due reports whether the oldest waiting records should be renewed. patience is the
// length of the log when a renewal was last impossible; otherwise 0.
func (r Renewal) Due(length, waiting, patience int) bool {
	return waiting > 0 && length >= patience+r.Least && length >= r.Share*waiting
}
