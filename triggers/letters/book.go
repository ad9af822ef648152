package letters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/follow"
)

// Book is the list of open letters, kept up to date. It is safe for concurrent
// use.
type Book struct {
	b *broker.Broker

	mu   sync.RWMutex
	fold *fold

	letters, acts *follow.Follower
}

// Open reads all dead letters and what has been asked about them, up to where
// both end now, and follows them from there. Close the book.
func Open(ctx context.Context, b *broker.Broker, logger *slog.Logger) (*Book, error) {
	k := &Book{b: b, fold: newFold()}
	asked := map[string][]tidemill.LetterRef{}
	live := false
	acts, err := follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamActs, Logger: logger, Take: func(d *broker.Delivery) {
		k.mu.Lock()
		defer k.mu.Unlock()
		eachAct(d, func(id string, refs []tidemill.LetterRef) {
			if live {
				k.fold.ask(id, refs, time.Now())
				return
			}
			asked[id] = refs
		})
	}})
	if err != nil {
		return nil, err
	}
	k.acts = acts
	// The letters are read behind the acts: what an act names is here then, and
	// what is not here has long been resolved.
	if k.letters, err = follow.Open(ctx, b, follow.Options{Stream: tidemill.StreamDeadLetters, Logger: logger, Take: k.take}); err != nil {
		return nil, errors.Join(err, acts.Close(ctx))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	live = true
	for id, refs := range asked {
		k.fold.ask(id, refs, time.Now())
	}
	return k, nil
}

// Close stops following and waits until it has.
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

// take folds deliveries in. What is neither a letter nor a receipt is passed
// over: a later version may write more here.
func (k *Book) take(d *broker.Delivery) {
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

// listed is a letter without what a list has no use for: decoding an attempt's
// answers and a record of a megabyte would be most of the work.
type listed struct {
	Stream       string `json:"stream"`
	Partition    int32  `json:"partition"`
	Offset       int64  `json:"offset"`
	Last         int64  `json:"lastOffset"`
	Group        string `json:"group"`
	Reason       string `json:"reason"`
	Trigger      string `json:"trigger"`
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
		return // it names no letter
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.receipt(at, r)
}

// Newest are up to so many of the letters that are meant, newest first. The
// cursor, if it is not empty, is what an earlier call returned, and next is
// empty at the end of the list.
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
		next = mark{last.Written.UnixNano(), last.ID}.String()
	}
	return page, total, next, nil
}

// ByKey hands over all letters that are meant, those of a partition in the order
// in which their events came. The book waits meanwhile, so fn must not ask it.
func (k *Book) ByKey(s Selection, fn func(Entry)) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, e := range k.fold.byKey(&s) {
		fn(e.full())
	}
}

// Find is the open letter of an id or, if only one begins so, of a prefix.
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

// Errors of looking a letter up.
var (
	ErrNotOpen   = errors.New("no dead letter of that id is open")
	ErrAmbiguous = errors.New("the id is not whole")
)

// IsOpen reports whether the letter of a whole id is open.
func (k *Book) IsOpen(id string) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.fold.open[nameOf(id)] != nil
}

// Receipt is where the receipt of a resolved letter lies; false if there is no
// such letter or it is open. It takes whole ids only.
func (k *Book) Receipt(id string) (broker.Position, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	at, over := k.fold.resolved[nameOf(id)]
	return broker.Position{Stream: tidemill.StreamDeadLetters, Partition: at.partition, Offset: at.offset}, over
}

// Asked notes an act that has just been written, so that who comes next need
// not wait for it to be read.
func (k *Book) Asked(act string, refs []tidemill.LetterRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.ask(act, refs, time.Now())
}

// Resolved notes a receipt that has just been written.
func (k *Book) Resolved(at broker.Position, r *Receipt) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fold.receipt(at, r)
}

// Counts are how many letters are open, by trigger; those that the broker wrote
// are counted under "".
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
