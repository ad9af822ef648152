package commands

import (
	"context"
	"fmt"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const (
	logWindow  = 200     // offsets that Log reads at once
	logWindows = 10      // most windows of one call
	logBytes   = 1 << 20 // bytes of one request to Kafka
)

// Log returns commands of people, newest first: those before an offset, or before the end of the stream if
// the offset is 0. It returns at most limit commands, and the offset to continue with; 0 if none is left.
// It may return fewer commands before a part of the stream that has none.
func Log(ctx context.Context, b *broker.Broker, before int64, limit int) (all []Command, next int64, err error) {
	ends, err := b.Ends(ctx, tidemill.StreamCommands)
	if err != nil {
		return nil, 0, fmt.Errorf("list the commands: %w", err)
	}
	starts, err := b.Places(ctx, tidemill.StreamCommands, broker.Earliest())
	if err != nil {
		return nil, 0, fmt.Errorf("list the commands: %w", err)
	}
	first, next := starts[0].Offset, ends[0].Offset
	if before > 0 {
		next = min(next, before)
	}
	for range logWindows {
		if next <= first || len(all) >= limit {
			break
		}
		from := max(first, next-logWindow)
		some, err := readWindow(ctx, b, from, next)
		if err != nil {
			return nil, 0, fmt.Errorf("list the commands: %w", err)
		}
		slices.Reverse(some)
		all, next = append(all, some...), from
	}
	if len(all) > limit {
		all = all[:limit]
		next = all[limit-1].Offset
	}
	if next <= first {
		next = 0
	}
	return all, next, nil
}

// readWindow returns the commands of people in a range of offsets, oldest first.
func readWindow(ctx context.Context, b *broker.Broker, from, to int64) (all []Command, err error) {
	for from < to {
		next, err := b.Read(ctx, broker.Position{Stream: tidemill.StreamCommands, Offset: from}, logBytes, func(e *broker.Incoming) bool {
			if e.Offset >= to {
				return false
			}
			if e.Err == nil && ofPerson(e.Type) {
				all = append(all, read(e))
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if next <= from {
			break
		}
		from = next
	}
	return all, nil
}

// ofPerson reports whether people give commands of a type. The others are reports on the same stream.
func ofPerson(typ string) bool {
	return typ != tidemill.TypeTriggerReplayed && typ != tidemill.TypeKeyPassed
}
