package letters

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/broker"
)

// readMost is how much of the log is read for one letter, or for several that
// lie close to each other.
const readMost = 9 << 20

// At hands the events at some places of the dead letters to fn, those of a
// partition in order. It reads each stretch of the log once, and leaps over what
// lies between. fn must not keep the event.
func (k *Book) At(ctx context.Context, places []broker.Position, fn func(broker.Position, *broker.Incoming) error) error {
	wanted := slices.Clone(places)
	slices.SortFunc(wanted, func(a, b broker.Position) int {
		if a.Partition != b.Partition {
			return int(a.Partition - b.Partition)
		}
		return int(a.Offset - b.Offset)
	})
	for len(wanted) > 0 {
		left, err := k.readSome(ctx, wanted, fn)
		if err != nil {
			return err
		}
		if len(left) == len(wanted) {
			return fmt.Errorf("read stream %s, partition %d, offset %d: the log holds it no more", wanted[0].Stream, wanted[0].Partition, wanted[0].Offset)
		}
		wanted = left
	}
	return nil
}

// readSome reads from the first place on, and returns those it has not come to.
func (k *Book) readSome(ctx context.Context, wanted []broker.Position, fn func(broker.Position, *broker.Incoming) error) ([]broker.Position, error) {
	first, failed := wanted[0], error(nil)
	_, err := k.b.Read(ctx, first, readMost, func(e *broker.Incoming) bool {
		at := broker.Position{Stream: first.Stream, Partition: first.Partition, Offset: e.Offset}
		if len(wanted) == 0 || wanted[0].Partition != first.Partition {
			return false
		}
		if wanted[0] == at {
			wanted, failed = wanted[1:], fn(at, e)
		}
		return failed == nil && len(wanted) > 0
	})
	return wanted, errors.Join(failed, err)
}
