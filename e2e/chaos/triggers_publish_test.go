package chaos

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev/broker"
)

// publish spreads events over a while.
func (r *triggersRound) publish(ctx context.Context, n int, over time.Duration) error {
	began := time.Now()
	failed := make(chan error, 1)
	for i := range n {
		r.writer.Send(ctx, streamIn, event(r.sent), func(_ broker.Receipt, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
		r.sent++
		if i%20 == 0 {
			if err := wait(ctx, time.Until(began.Add(over*time.Duration(i)/time.Duration(n)))); err != nil {
				return err
			}
		}
	}
	if err := r.writer.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return fmt.Errorf("publish: %w", err)
	default:
		return nil
	}
}

func event(n int) *broker.View {
	id := eventID(n)
	return &broker.View{ID: id, Source: sourceHere, Type: typeEvent, Subject: keyOf(int64(n)), DataContentType: "text/plain",
		Extensions: []broker.Attribute{{Name: extOdd, Value: strconv.FormatBool(n%2 == 1)}}, Data: []byte(dataOf(id))}
}
