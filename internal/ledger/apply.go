package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
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
		steps[i] = step{c.partition, c.next, c.makings}
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

// load finds the makings that the facts are about.
func (l *Ledger) load(ctx context.Context, parts []*part) error {
	var missing []string
	var of []*part
	for _, p := range parts {
		p.makings = make(map[string]*tidemill.Making, len(p.facts))
		s := l.shelf(p.partition)
		for i := range p.facts {
			member := tidemill.RunKey(p.facts[i].Recipe, p.facts[i].Key)
			if _, asked := p.makings[member]; asked {
				continue
			}
			m := s.get(member, l.kept)
			if p.makings[member] = m; m == nil {
				missing, of = append(missing, member), append(of, p)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	at, found, err := readMakings(ctx, l.client, l.prefix, parts, missing)
	if err != nil {
		return fmt.Errorf("read %d makings from redis: %w", len(missing), err)
	}
	for i, p := range parts {
		if at[i] != strconv.FormatInt(l.progress.reached(p.partition), 10) {
			return l.moved(parts, at)
		}
	}
	for i, m := range found {
		of[i].makings[missing[i]] = m
		l.shelf(of[i].partition).put(missing[i], m, l.kept)
	}
	return nil
}

// readMakings reads makings, and how far their partitions are, at one moment.
func readMakings(ctx context.Context, client *redis.Client, prefix string, parts []*part, members []string) (at []string, all []*tidemill.Making, err error) {
	fields := make([]string, len(parts))
	for i, p := range parts {
		fields[i] = strconv.Itoa(int(p.partition))
	}
	var places, values *redis.SliceCmd
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		places = pipe.HMGet(ctx, prefix+"at", fields...)
		values = pipe.HMGet(ctx, prefix+"makings", members...)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, v := range places.Val() {
		next, ok := v.(string)
		if !ok {
			next = "0"
		}
		at = append(at, next)
	}
	for i, v := range values.Val() {
		m := &tidemill.Making{}
		if text, ok := v.(string); ok {
			if err := json.Unmarshal([]byte(text), m); err != nil {
				return nil, nil, fmt.Errorf("read the making of %s: %w", members[i], err)
			}
		}
		all = append(all, m)
	}
	return at, all, nil
}

func (l *Ledger) shelf(partition int32) *shelf {
	s := l.shelves[partition]
	if s == nil {
		s = &shelf{}
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

// arguments are those of the script, section by section.
func (l *Ledger) arguments(all []*changes) []any {
	args := []any{l.prefix, len(all)}
	for _, c := range all {
		args = append(args, c.partition, c.from, c.next)
	}
	n := 0
	for _, c := range all {
		n += len(c.makings)
	}
	args = append(args, n)
	for _, c := range all {
		for member, making := range c.makings {
			args = append(args, member, making)
		}
	}
	args = section(args, all, 3, func(c *changes) []string { return c.runs })
	args = section(args, all, 2, func(c *changes) []string { return c.live })
	args = section(args, all, 3, func(c *changes) []string { return c.pending })
	return section(args, all, 2, func(c *changes) []string { return c.keys })
}

func section(args []any, all []*changes, width int, of func(*changes) []string) []any {
	n := 0
	for _, c := range all {
		n += len(of(c))
	}
	args = append(args, n/width)
	for _, c := range all {
		for _, a := range of(c) {
			args = append(args, a)
		}
	}
	return args
}
