package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// deadLetterWriter writes dead letters. It retries until the dead letters are written, because an
// event must not be dropped without its dead letter.
type deadLetterWriter struct {
	p     *broker.Producer
	names tidemill.Names
	log   *slog.Logger
}

// write writes an item's dead letter and returns its id. An error means that the item's
// partition has been given up meanwhile.
func (w *deadLetterWriter) write(h *assignment, i *item, last *Attempt, reason string) (string, error) {
	if i.lost != "" {
		return w.withoutEvent(h, i, reason)
	}
	destination := ""
	if to := h.pipeline.d.senderOf(i.queue.trigger.name).to.Load(); to.subscriber != nil {
		destination = to.subscriber.destination()
	}
	d := details(i, last, h.pipeline.group, reason)
	d.Destination = destination
	v, err := deadletters.New(w.names, place(i), &i.event.view, d, time.Now())
	if err != nil {
		return w.withoutEvent(h, i, reason+"; "+err.Error())
	}
	w.log.Warn("dispatcher: delivery failed; the event becomes a dead letter", "trigger", d.Trigger, "stream", i.part.stream, "partition", i.part.number, "offset", i.ref.source, "event", i.event.view.ID, "reason", reason)
	if err = w.publish(h.ctx, &v); errors.Is(err, broker.ErrTooLarge) {
		return w.withoutEvent(h, i, reason+"; "+err.Error())
	}
	return v.ID, err
}

// withoutEvent returns the dead letter of an item whose event does not fit into one.
func (w *deadLetterWriter) withoutEvent(h *assignment, i *item, reason string) (string, error) {
	at := place(i)
	return w.gap(h.ctx, at, at.Offset, h.pipeline.group, fmt.Sprintf("trigger %s: %s", i.queue.trigger.name, reason), i.queue.trigger.name)
}

// gap writes a dead letter for offsets that can no longer be read, for one trigger if it is given.
func (w *deadLetterWriter) gap(ctx context.Context, from broker.Position, last int64, group, reason string, of ...string) (string, error) {
	data, err := json.Marshal(broker.DeadLetter{Stream: from.Stream, Partition: from.Partition, Offset: from.Offset, Last: last, Group: group, Reason: reason})
	if err != nil {
		return "", fmt.Errorf("write the dead letter of %s/%d at offset %d: %w", from.Stream, from.Partition, from.Offset, err)
	}
	w.log.Warn("dispatcher: an event is unreadable or too large; its dead letter lacks the event", "stream", from.Stream, "partition", from.Partition, "offset", from.Offset, "reason", reason)
	v := broker.View{
		ID:     tidemill.ID(append([]string{"dead-letter", group, from.Stream, strconv.Itoa(int(from.Partition)), strconv.FormatInt(from.Offset, 10)}, of...)...),
		Source: w.names.Source("dispatcher"), Type: tidemill.TypeEventDeadLettered, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: data}
	return v.ID, w.publish(ctx, &v)
}

// publish retries until the dead letter is written or the context ends. A repeated one
// has the same id, because the id derives from its cause.
func (w *deadLetterWriter) publish(ctx context.Context, v *broker.View) error {
	return w.retry(ctx, v.ID, func() error {
		_, err := w.p.Publish(ctx, tidemill.StreamDeadLetters, v)
		return err
	})
}

const publishAgain = time.Second

var errNoLetter = errors.New("the dead letter was not written")

// letterRef is the place of a dead letter, as a parked event stores it.
type letterRef struct {
	partition int32
	offset    int64
	id        string
}

func refOf(l *askedLetter) letterRef { return letterRef{l.Partition, l.Offset, l.ID} }

// String returns the text for a record.
func (r letterRef) String() string {
	return strconv.Itoa(int(r.partition)) + "/" + strconv.FormatInt(r.offset, 10) + "/" + r.id
}

func parseLetterRef(text string) (letterRef, error) {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) < 3 {
		return letterRef{}, fmt.Errorf("%q is not the id of a dead letter", text)
	}
	partition, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return letterRef{}, fmt.Errorf("%q is not the id of a dead letter: %w", text, err)
	}
	offset, err := strconv.ParseInt(parts[1], 10, 64)
	return letterRef{int32(partition), offset, parts[2]}, err
}

// resolve ends the dead letter that an item replays; for any other item it does
// nothing. An error means that the item's partition has been given up.
func (d *Dispatcher) resolve(i *item, r deadletters.Receipt) error {
	if i.letter == "" {
		return nil
	}
	ref, err := parseLetterRef(i.letter)
	if err != nil { // cannot happen, because a dispatcher wrote the reference
		d.o.Logger.Error("dispatcher: the reference to a replayed dead letter is invalid; it gets no receipt", "trigger", i.queue.trigger.name, "event", i.event.view.ID, "reason", err)
		return nil
	}
	r.Command = actOf(i.replay)
	r.By = askedBy(d.commands.Now(), r.Command)
	letter := deadletters.Of(d.names, ref.id, i.queue.trigger.name, &i.event.view)
	return d.deadLetters.resolve(i.part.home.ctx, ref, &letter, r)
}

// askedBy returns the author of a command.
func askedBy(all *commands.State, act string) string {
	for _, r := range all.LetterReplays(0) {
		if r.ID == act {
			return r.By
		}
	}
	return ""
}

// resolve writes the receipt of a replayed dead letter. Its id derives from the dead
// letter and the command, so a repeated receipt has the same id.
func (w *deadLetterWriter) resolve(ctx context.Context, at letterRef, letter *broker.View, r deadletters.Receipt) error {
	r.Partition, r.Offset, r.Action = at.partition, at.offset, deadletters.Replayed
	v, err := deadletters.Resolved(w.names, letter, r, time.Now())
	if err != nil {
		return err
	}
	return w.retry(ctx, v.ID, func() error {
		done := make(chan error, 1)
		w.p.SendTo(ctx, tidemill.StreamDeadLetters, at.partition, &v, func(_ broker.Receipt, err error) { done <- err })
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// retry calls write until it succeeds, the context ends, or the error is permanent.
func (w *deadLetterWriter) retry(ctx context.Context, id string, write func() error) error {
	backoff := retry.Backoff{First: publishAgain, Cap: 30 * publishAgain}
	for {
		err := write()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, broker.ErrTooLarge) {
			return errors.Join(errNoLetter, err)
		}
		w.log.Warn("dispatcher: writing a dead letter failed; retrying", "event", id, "reason", err)
		if backoff.Sleep(ctx) != nil {
			return errNoLetter
		}
	}
}
