package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// undertaking writes dead letters. It tries until they are written, for without
// its letter an event must not leave.
type undertaking struct {
	p     *broker.Producer
	names tidemill.Names
	log   *slog.Logger
}

// write writes an item's letter and returns its id. An error says that the
// item's partition has been given up meanwhile.
func (u *undertaking) write(h *shard, i *item, last *Attempt, reason string) (string, error) {
	if i.lost != "" {
		return u.without(h, i, reason)
	}
	destination := ""
	if to := h.lane.d.senderOf(i.chain.line.name).to.Load(); to.subscriber != nil {
		destination = to.subscriber.destination()
	}
	d := details(i, last, h.lane.group, reason)
	d.Destination = destination
	v, err := letters.New(u.names, place(i), &i.event.view, d, time.Now())
	if err != nil {
		return u.without(h, i, reason+"; "+err.Error())
	}
	u.log.Warn("dead letter", "trigger", d.Trigger, "stream", i.part.stream, "partition", i.part.number, "offset", i.rec.source, "event", i.event.view.ID, "reason", reason)
	if err = u.publish(h.ctx, &v); errors.Is(err, broker.ErrTooLarge) {
		return u.without(h, i, reason+"; "+err.Error())
	}
	return v.ID, err
}

// without is the letter of an item whose event no letter can hold.
func (u *undertaking) without(h *shard, i *item, reason string) (string, error) {
	at := place(i)
	return u.gap(h.ctx, at, at.Offset, h.lane.group, fmt.Sprintf("trigger %s: %s", i.chain.line.name, reason), i.chain.line.name)
}

// gap is the letter of offsets that nobody can read any more, of for one trigger
// perhaps.
func (u *undertaking) gap(ctx context.Context, from broker.Position, last int64, group, reason string, of ...string) (string, error) {
	data, err := json.Marshal(broker.DeadLetter{Stream: from.Stream, Partition: from.Partition, Offset: from.Offset, Last: last, Group: group, Reason: reason})
	if err != nil {
		return "", fmt.Errorf("write the dead letter of %s/%d at offset %d: %w", from.Stream, from.Partition, from.Offset, err)
	}
	u.log.Warn("dead letter", "stream", from.Stream, "partition", from.Partition, "offset", from.Offset, "reason", reason)
	v := broker.View{
		ID:     tidemill.ID(append([]string{"dead-letter", group, from.Stream, strconv.Itoa(int(from.Partition)), strconv.FormatInt(from.Offset, 10)}, of...)...),
		Source: u.names.Source("dispatcher"), Type: tidemill.TypeEventDeadLettered, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: data}
	return v.ID, u.publish(ctx, &v)
}

// publish writes until it is written or the context ends. The id derives from
// the cause, so twice is once.
func (u *undertaking) publish(ctx context.Context, v *broker.View) error {
	return u.insist(ctx, v.ID, func() error {
		_, err := u.p.Publish(ctx, tidemill.StreamDeadLetters, v)
		return err
	})
}

const publishAgain = time.Second

var errNoLetter = errors.New("the dead letter was not written")

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
