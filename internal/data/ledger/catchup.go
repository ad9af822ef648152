package ledger

import (
	"context"
	"fmt"
	"strconv"

	"tidemill.dev/broker"
)

// applied asks Redis how far each partition is.
func (l *Ledger) applied(ctx context.Context) (map[int32]int64, error) {
	fields, err := l.client.HGetAll(ctx, l.key("at")).Result()
	if err != nil {
		return nil, fmt.Errorf("ask redis how far it is: %w", err)
	}
	return placesIn(fields)
}

// placesIn reads how far each partition is.
func placesIn(fields map[string]string) (map[int32]int64, error) {
	all := map[int32]int64{}
	for name, value := range fields {
		partition, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			continue // sum and ready
		}
		if all[int32(partition)], err = strconv.ParseInt(value, 10, 64); err != nil {
			return nil, fmt.Errorf("read how far redis is: %w", err)
		}
	}
	return all, nil
}

// catchUp looks whether all has been folded in that was on the log when this
// began, and says so in Redis if it is.
func (l *Ledger) catchUp(ctx context.Context, c *broker.Consumer) (ready bool, err error) {
	_, ends := l.progress.distance()
	if err := l.passMarkers(ctx, c, ends); err != nil {
		return false, err
	}
	args := []any{l.prefix}
	for partition, end := range ends {
		if l.progress.reached(partition) < end {
			return false, nil
		}
		args = append(args, partition, end)
	}
	ready, err = scriptReady.Run(ctx, l.client, []string{l.key("at")}, args...).Bool()
	switch {
	case err != nil:
		return false, fmt.Errorf("tell redis that it is caught up: %w", err)
	case !ready:
		return false, errForgotten
	}
	return true, nil
}

// passMarkers applies what is read and holds no fact: the markers of
// transactions bring no delivery when they are the last on the log.
func (l *Ledger) passMarkers(ctx context.Context, c *broker.Consumer, ends map[int32]int64) error {
	b := &batch{parts: map[int32]*part{}}
	for _, at := range c.Positions() {
		if folded := l.upTo(at.Partition); folded < ends[at.Partition] && folded < at.Offset {
			b.parts[at.Partition] = &part{partition: at.Partition, from: folded, next: at.Offset}
		}
	}
	return l.apply(ctx, b)
}

// check asks whether Redis still has what it had.
func (l *Ledger) check(ctx context.Context) error {
	sum, _ := l.progress.known()
	fields, err := l.client.HMGet(ctx, l.key("at"), "sum", "ready").Result()
	if err != nil {
		return fmt.Errorf("ask redis how far it is: %w", err)
	}
	if !holds(fields, sum) {
		return errForgotten
	}
	return nil
}

// holds reports whether Redis is caught up and has all that is known of. The
// fields are sum and ready.
func holds(fields []any, known int64) bool {
	text, _ := fields[0].(string)
	sum, _ := strconv.ParseInt(text, 10, 64)
	return fields[1] != nil && sum >= known
}

// forget takes all away that Redis holds of facts that the log does not have.
func (l *Ledger) forget(ctx context.Context, ends map[int32]int64) error {
	args := []any{l.prefix}
	for partition, end := range ends {
		args = append(args, partition, end)
	}
	if err := scriptForget.Run(ctx, l.client, []string{l.key("at")}, args...).Err(); err != nil {
		return fmt.Errorf("take the facts of a former stream out of redis: %w", err)
	}
	return nil
}
