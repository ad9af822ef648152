package erase

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"tidemill.dev/broker"
	"tidemill.dev/triggers/deadletters"
)

// lettersOf are the open dead letters of a key.
func (f *Forgetter) lettersOf(ctx context.Context, key string) (places []broker.Position, book *deadletters.Book, err error) {
	if book, err = f.o.Letters(ctx); err != nil {
		return nil, nil, fmt.Errorf("look for dead letters of key %s: %w", key, err)
	}
	book.ByKey(deadletters.Selection{Key: key}, func(e deadletters.Entry) { places = append(places, e.At) })
	return places, book, nil
}

// dropLetters resolves them without a delivery, those too that somebody has
// asked to replay: of two receipts the first counts.
func (f *Forgetter) dropLetters(ctx context.Context, n *note) error {
	places, book, err := f.lettersOf(ctx, n.Key)
	if err != nil || len(places) == 0 {
		return err
	}
	d := &dropping{f: f, n: n, ctx: ctx, book: book}
	err = book.At(ctx, places, d.send)
	d.sent.Wait()
	if err = errors.Join(err, d.failed); err != nil {
		return fmt.Errorf("drop the dead letters of key %s: %w", n.Key, err)
	}
	return nil
}

// dropping is one drop under way.
type dropping struct {
	f    *Forgetter
	n    *note
	ctx  context.Context
	book *deadletters.Book
	sent sync.WaitGroup

	mu     sync.Mutex
	failed error
}

// send writes a letter's receipt to the letter's own partition.
func (d *dropping) send(at broker.Position, e *broker.Incoming) error {
	r := deadletters.Receipt{Letter: strings.Clone(e.ID), Partition: at.Partition, Offset: at.Offset,
		Action: deadletters.Dropped, Outcome: deadletters.DroppedByAct, Reason: d.n.because(), By: d.n.By}
	v, err := deadletters.Resolved(d.f.o.Names, &e.View, r, d.f.now())
	if err != nil {
		return err
	}
	d.sent.Add(1)
	d.f.o.Producer.SendTo(d.ctx, at.Stream, at.Partition, &v, func(lies broker.Receipt, err error) {
		defer d.sent.Done()
		if err == nil {
			d.book.Resolved(broker.Position{Stream: at.Stream, Partition: lies.Partition, Offset: lies.Offset}, &r)
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.failed = err
	})
	return nil
}

// because is why, for those who meet a part of the end alone.
func (n *note) because() string {
	if n.Reason == "" {
		return "the key was forgotten"
	}
	return "the key was forgotten: " + n.Reason
}
