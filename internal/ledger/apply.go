package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// errAhead says that somebody else has applied facts meanwhile.
var errAhead = errors.New("others have applied facts")

// apply folds a batch and writes what it changes. Where it is large its partitions
// are dealt to a few lanes, so that some facts are folded while others are written.
func (l *Ledger) apply(ctx context.Context, b *batch) error {
	for partition := range b.parts {
		l.shelf(partition) // which lanes cannot make beside one another
	}
	lanes := b.deal()
	if len(lanes) == 1 {
		return l.applyLane(ctx, lanes[0])
	}
	errs := make([]error, len(lanes))
	var working sync.WaitGroup
	for i, lane := range lanes {
		working.Go(func() { errs[i] = l.applyLane(ctx, lane) })
	}
	working.Wait()
	return firstWorst(errs)
}

// firstWorst is what a batch failed by. That Redis has forgotten explains any
// other error.
func firstWorst(errs []error) (worst error) {
	for _, err := range errs {
		if errors.Is(err, errForgotten) || worst == nil {
			worst = err
		}
	}
	return worst
}

// applyLane applies some facts at a time. Somebody else may have applied some of
// them meanwhile, and then it goes on behind those.
func (l *Ledger) applyLane(ctx context.Context, b *batch) error {
	for {
		parts := b.cut(l.o.atOnce, l.progress.reached)
		if len(parts) == 0 {
			return nil
		}
		err := l.applyOnce(ctx, parts)
		if err == nil {
			continue
		}
		for _, p := range parts { // they were changed, and what Redis has was not
			l.shelf(p.partition).clear()
		}
		if !errors.Is(err, errAhead) {
			return err
		}
	}
}

func (l *Ledger) applyOnce(ctx context.Context, parts []*part) error {
	began := time.Now()
	if err := l.load(ctx, parts); err != nil {
		return err
	}
	all, err := l.fold(parts)
	if err != nil {
		return err
	}
	facts := 0
	for _, p := range parts {
		facts += len(p.facts)
	}
	at, err := scriptApply.Run(ctx, l.client, []string{l.key("at")}, l.arguments(all)...).StringSlice()
	if err != nil {
		return fmt.Errorf("write %d facts to redis: %w", facts, err)
	}
	if len(at) > 0 {
		return l.moved(parts, at)
	}
	steps := make([]step, len(all))
	for i, c := range all {
		steps[i] = step{c.partition, c.next, c.states}
	}
	l.progress.advance(steps...)
	l.metrics.facts.Add(float64(facts))
	l.metrics.batches.Observe(time.Since(began).Seconds())
	return nil
}

// moved takes in how far Redis is, where that is not where it was thought to be.
func (l *Ledger) moved(parts []*part, at []string) error {
	var steps []step
	for i, p := range parts {
		next, err := strconv.ParseInt(at[i], 10, 64)
		if err != nil {
			return fmt.Errorf("read how far redis is: %w", err)
		}
		known := l.progress.reached(p.partition)
		if next < known {
			return errForgotten
		}
		if next > known {
			steps = append(steps, step{partition: p.partition, next: next})
		}
	}
	l.progress.advance(steps...)
	return errAhead
}

func (l *Ledger) shelf(partition int32) *shelves {
	s := l.shelves[partition]
	if s == nil {
		s = &shelves{}
		l.shelves[partition] = s
	}
	return s
}

// fold folds what parts have, each behind where it is known to be.
func (l *Ledger) fold(parts []*part) ([]*changes, error) {
	all := make([]*changes, len(parts))
	for i, p := range parts {
		all[i] = &changes{partition: p.partition, from: l.progress.reached(p.partition), next: p.next}
		if err := all[i].fold(p); err != nil {
			return nil, err
		}
	}
	return all, nil
}
