package champions

import (
	"context"
	"fmt"
	"time"

	"tidemill.dev"
)

// Places are the offsets behind the last fact that the table has, by partition.
// What Champion has told before is not newer.
func (t *Table) Places() []int64 { return t.progress.places() }

// askEvery is how often it is asked whether the log can still reach some places.
const askEvery = time.Second

// Reached waits until the table is as new as some places. More of them than there
// are partitions, or places that the log does not have, are an error, not a wait:
// they are of facts that are gone.
func (t *Table) Reached(ctx context.Context, places []int64) error {
	done, changed := t.progress.covers(places)
	if done {
		return nil
	}
	t.progress.await(1)
	defer t.progress.await(-1)
	for {
		if err := t.possible(ctx, places); err != nil {
			return err
		}
		ask := time.NewTimer(askEvery)
		for waiting := true; waiting; {
			select {
			case <-changed:
			case <-ask.C:
				waiting = false
			case <-ctx.Done():
				ask.Stop()
				return t.late(ctx)
			}
			if done, changed = t.progress.covers(places); done {
				ask.Stop()
				return nil
			}
		}
	}
}

func (t *Table) late(ctx context.Context) error {
	err := fmt.Errorf("wait until the champions are as new as those that were scored by: %w", context.Cause(ctx))
	if why := t.Err(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// possible asks whether the log can have some places. While Kafka does not answer
// it can.
func (t *Table) possible(ctx context.Context, places []int64) error {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return nil
	}
	for partition, next := range places {
		if partition >= len(ends) {
			if next == 0 {
				continue
			}
			return fmt.Errorf("wait for %d partitions of stream %s, which has %d: the facts were begun anew since", len(places), tidemill.StreamFacts, len(ends))
		}
		if end := ends[partition].Offset; next > end {
			return fmt.Errorf("wait for offset %d of stream %s, partition %d, which ends at %d: the facts were begun anew since", next, tidemill.StreamFacts, partition, end)
		}
	}
	return nil
}
