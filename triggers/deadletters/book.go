package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

// Book is the list of open dead letters, kept up to date. It is safe for concurrent
// use.
type Book struct {
	b *broker.Broker

	mu   sync.RWMutex
	fold *letterFold

	letters, acts *follow.Follower
}

// Open reads all dead letters and all commands about them, up to their present ends,
// and then follows them. The caller closes the book.
func Open(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Book, error) {
	k := &Book{b: b, fold: newFold()}
	asked := map[string][]tidemill.LetterRef{}
	live := false
	acts, err := follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamCommands, Logger: logger, Take: func(d *broker.Delivery) {
		k.mu.Lock()
		defer k.mu.Unlock()
		eachAct(d, func(id string, refs []tidemill.LetterRef) {
			if live {
				k.fold.recordReplay(id, refs, time.Now())
				return
			}
			asked[id] = refs
		})
	}})
	if err != nil {
		return nil, err
	}
	k.acts = acts
	// The dead letters are read after the commands: then every dead letter that a
	// command names is known or has long been resolved.
	if k.letters, err = follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamDeadLetters, Logger: logger, Take: k.foldDelivery}); err != nil {
		return nil, errors.Join(err, acts.Close(ctx))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	live = true
	for id, refs := range asked {
		k.fold.recordReplay(id, refs, time.Now())
	}
	return k, nil
}

// Close stops following and waits until it has ended.
func (k *Book) Close(ctx context.Context) error {
	return errors.Join(k.acts.Close(ctx), k.letters.Close(ctx))
}

func eachAct(d *broker.Delivery, fn func(id string, refs []tidemill.LetterRef)) {
	for i := range d.Events {
		e := &d.Events[i]
		var data tidemill.LetterReplayData
		if e.Err == nil && e.Type == tidemill.TypeEventReplayRequested && json.Unmarshal(e.Data, &data) == nil {
			fn(strings.Clone(e.ID), data.Letters)
		}
	}
}

// foldDelivery folds deliveries. It ignores events that are neither dead letters nor receipts,
// because a later version may write others.
func (k *Book) foldDelivery(d *broker.Delivery) {
	for i := range d.Events {
		e := &d.Events[i]
		if e.Err != nil {
			continue
		}
		at := broker.Position{Stream: d.Stream, Partition: d.Partition, Offset: e.Offset}
		switch e.Type {
		case tidemill.TypeEventDeadLettered:
			k.takeLetter(at, e)
		case tidemill.TypeEventResolved:
			k.takeReceipt(at, e)
		}
	}
}

// listed is a dead letter without the parts that a list does not need. Decoding the
// answers and a record of a megabyte would be most of the work.
type listed struct {
	Stream       string `json:"stream"`
	Partition    int32  `json:"partition"`
	Offset       int64  `json:"offset"`
	Last         int64  `json:"lastOffset"`
	Group        string `json:"group"`
	Reason       string `json:"reason"`
	Trigger      string `json:"trigger"`
	Scorer       string `json:"scorer"`
	OriginalType string `json:"originalType"`
	Tried        int    `json:"tried"`
}

func (k *Book) takeLetter(at broker.Position, e *broker.Incoming) {
	var l listed
	if json.Unmarshal(e.Data, &l) != nil {
		l.Reason = "the dead letter itself cannot be read"
	}
	written, err := time.Parse(time.RFC3339Nano, e.View.Time)
	if err != nil {
		written = e.Time
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.letter(at, written, &e.View, &l)
}

func (k *Book) takeReceipt(at broker.Position, e *broker.Incoming) {
	r, err := ReadReceipt(&e.View)
	if err != nil {
		return // it names no dead letter
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.receipt(at, r)
}

// Newest returns up to limit selected dead letters, newest first. The cursor is empty
// or was returned by an earlier call; next is empty at the end of the list.
func (k *Book) Newest(s Selection, limit int, cursor string) (page []Entry, total int, next string, err error) {
	behind, err := parseCursor(cursor)
	if err != nil {
		return nil, 0, "", err
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	page, total, more := k.fold.newest(&s, limit, behind)
	if more {
		last := page[len(page)-1]
		next = listPosition{last.Written.UnixNano(), last.ID}.String()
	}
	return page, total, next, nil
}

// ByKey calls fn with all selected dead letters, those of a partition in the order of
// their events. The book is locked meanwhile, so fn must not call it.
func (k *Book) ByKey(s Selection, fn func(Entry)) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, e := range k.fold.byKey(&s) {
		fn(e.full())
	}
}

// Find returns the open dead letter of an id, or of a prefix that only one id has.
func (k *Book) Find(id string) (Entry, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if e := k.fold.open[nameOf(id)]; e != nil {
		return e.full(), nil
	}
	var found []*entry
	for _, e := range k.fold.open {
		if id != "" && strings.HasPrefix(e.id(), id) {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 0:
		return Entry{}, ErrNotOpen
	case 1:
		return found[0].full(), nil
	}
	return Entry{}, fmt.Errorf("%w: the ids of %d dead letters begin with %q; give more of it", ErrAmbiguous, len(found), id)
}

// Errors of Find.
var (
	ErrNotOpen   = errors.New("no open dead letter has that id")
	ErrAmbiguous = errors.New("the id is not whole")
)

// IsOpen reports whether the dead letter of a whole id is open.
func (k *Book) IsOpen(id string) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.fold.open[nameOf(id)] != nil
}

// Receipt returns the place of the receipt of a resolved dead letter; false if there is
// no such dead letter or it is open. Only whole ids are accepted.
func (k *Book) Receipt(id string) (broker.Position, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	at, over := k.fold.resolved[nameOf(id)]
	return broker.Position{Stream: tidemill.StreamDeadLetters, Partition: at.partition, Offset: at.offset}, over
}

// Asked notes a command that was just written, so that the next caller need not wait
// until it is read.
func (k *Book) Asked(act string, refs []tidemill.LetterRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.recordReplay(act, refs, time.Now())
}

// Resolved notes a receipt that was just written.
func (k *Book) Resolved(at broker.Position, r *Receipt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.receipt(at, r)
}

// Counts returns the number of open dead letters by trigger. Those that the broker
// wrote are under "".
func (k *Book) Counts() map[string]int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	all := map[string]int{}
	for trigger, n := range maps.All(k.fold.counts) {
		if n > 0 {
			all[trigger.Value()] = n
		}
	}
	return all
}

// readMost is the size of a read for one dead letter, or for several that are close to
// each other.
const readMost = 9 << 20

// At calls fn with the events at some places, those of a partition in order. It reads
// each part of the log once and skips what is between. fn must not keep the event.
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
			return fmt.Errorf("read stream %s, partition %d, offset %d: the log no longer has it", wanted[0].Stream, wanted[0].Partition, wanted[0].Offset)
		}
		wanted = left
	}
	return nil
}

// readSome reads from the first place on and returns the places that it has not
// reached.
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
