package deliver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// letterRef is where a dead letter lies, as a parked event remembers it.
type letterRef struct {
	partition int32
	offset    int64
	id        string
}

func refOf(l *askedLetter) letterRef { return letterRef{l.Partition, l.Offset, l.ID} }

// String is what a record holds.
func (r letterRef) String() string {
	return strconv.Itoa(int(r.partition)) + "/" + strconv.FormatInt(r.offset, 10) + "/" + r.id
}

func parseLetterRef(text string) (letterRef, error) {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) < 3 {
		return letterRef{}, fmt.Errorf("%q names no dead letter", text)
	}
	partition, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return letterRef{}, fmt.Errorf("%q names no dead letter: %w", text, err)
	}
	offset, err := strconv.ParseInt(parts[1], 10, 64)
	return letterRef{int32(partition), offset, parts[2]}, err
}

// resolve ends the letter that an item is the replay of; that of any other item
// is nothing. An error says that the item's partition has been given up.
func (d *Dispatcher) resolve(i *item, r letters.Receipt) error {
	if i.letter == "" {
		return nil
	}
	ref, err := parseLetterRef(i.letter)
	if err != nil { // written by nobody of ours
		d.o.Logger.Error("a replay ends and its dead letter cannot be found", "trigger", i.chain.line.name, "event", i.event.view.ID, "reason", err)
		return nil
	}
	r.Act = actOf(i.replay)
	r.By = askedBy(d.acts.Now(), r.Act)
	letter := letters.Of(d.names, ref.id, i.chain.line.name, &i.event.view)
	return d.letters.resolve(i.part.home.ctx, ref, &letter, r)
}

// askedBy is who wrote an act.
func askedBy(all *tidemill.Acts, act string) string {
	for _, r := range all.LetterReplays(0) {
		if r.ID == act {
			return r.By
		}
	}
	return ""
}

// resolve writes the receipt of a replayed letter beside it. Its id follows from
// the letter and the act, so twice is once.
func (u *undertaking) resolve(ctx context.Context, at letterRef, letter *broker.View, r letters.Receipt) error {
	r.Partition, r.Offset, r.Action = at.partition, at.offset, letters.Replayed
	v, err := letters.Resolved(u.names, letter, r, time.Now())
	if err != nil {
		return err
	}
	return u.insist(ctx, v.ID, func() error {
		done := make(chan error, 1)
		u.p.SendTo(ctx, tidemill.StreamDeadLetters, at.partition, &v, func(_ broker.Receipt, err error) { done <- err })
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// insist tries until it is done, the context ends, or it would go the same way
// every time.
func (u *undertaking) insist(ctx context.Context, id string, write func() error) error {
	for wait := publishAgain; ; wait = min(2*wait, 30*publishAgain) {
		err := write()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, broker.ErrTooLarge) {
			return errors.Join(errNoLetter, err)
		}
		u.log.Warn("a dead letter cannot be written yet; its event stays until it is", "event", id, "reason", err)
		if sleep(ctx, wait) != nil {
			return errNoLetter
		}
	}
}
