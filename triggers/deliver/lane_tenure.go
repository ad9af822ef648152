package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tidemill.dev/broker"
)

// assigned rebuilds partitions from their parked logs, before they are read or,
// after a transaction that failed, before they are read anew.
func (l *lane) assigned(ctx context.Context, at []broker.Position) ([]broker.Position, error) {
	companions, err := l.companions(ctx)
	if err != nil {
		return nil, err
	}
	marks, err := l.marksOf(ctx, at, companions)
	if err != nil {
		return nil, fmt.Errorf("find what is parked of stream %s: %w", l.stream.Name, err)
	}
	ends, err := l.d.o.Broker.Ends(ctx, l.stream.Name)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	t, keeps, event := l.terms, l.keeps, l.event
	l.mu.Unlock()
	r := rebuild{l: l, folds: map[int32]*fold{}}
	for _, p := range at {
		b := defaultBounds()
		b.retention, b.skew, b.event = keeps, l.d.o.Skew, event
		r.folds[p.Partition] = newFold(newPartition(l.stream.Name, p.Partition, b, p.Offset), t)
	}
	there := slices.DeleteFunc(slices.Clone(marks), func(m broker.Position) bool { return m.Partition >= companions })
	if err := r.read(ctx, there); err != nil {
		return nil, fmt.Errorf("find what is parked of stream %s: %w", l.stream.Name, err)
	}
	for _, f := range r.folds {
		if f.p.number >= companions {
			l.bereave(f.p)
		}
	}
	return r.finish(at, ends), nil
}

func endOf(ends []broker.Position, p broker.Position) int64 {
	for _, e := range ends {
		if e.Partition == p.Partition {
			return e.Offset
		}
	}
	return p.Offset
}

// rebuild makes partitions out of their parked logs.
type rebuild struct {
	l      *lane
	folds  map[int32]*fold
	failed error
}

// read folds the logs from their marks on. It waits for what a predecessor's
// transaction may still be about to show: see [broker.Broker.ReadBack].
func (r *rebuild) read(ctx context.Context, marks []broker.Position) error {
	if len(marks) == 0 {
		return nil
	}
	from := slices.Clone(marks)
	for n := range from {
		from[n].Offset = max(from[n].Offset, 0)
	}
	if err := r.checkStarts(ctx, from); err != nil {
		return err
	}
	_, err := r.l.d.o.Broker.ReadBack(ctx, from, r.add)
	return errors.Join(r.failed, err)
}

func (r *rebuild) add(in *broker.Incoming) {
	if r.failed == nil {
		r.failed = r.folds[in.Position().Partition].add(in)
	}
}

// checkStarts writes a dead letter where a parked log has expired before all
// that is needed of it was dealt with: everybody was away for longer than its
// retention.
func (r *rebuild) checkStarts(ctx context.Context, from []broker.Position) error {
	starts, err := r.l.d.o.Broker.Places(ctx, r.l.parked(), broker.Earliest())
	if err != nil {
		return err
	}
	for _, f := range from {
		if start := endOf(starts, f); start > f.Offset {
			_, err := r.l.d.letters.gap(ctx, f, start-1, r.l.group, "what was parked there has expired before it was delivered: nobody served the triggers for longer than the retention")
			if err != nil {
				return err
			}
		}
	}
	return err
}

// finish puts the partitions into their places, and says from where each is to
// be read.
func (r *rebuild) finish(at, ends []broker.Position) []broker.Position {
	built := make([]*shard, len(at))
	places := slices.Clone(at)
	for n, p := range at {
		f := r.folds[p.Partition]
		built[n] = newShard(r.l, f.p)
		places[n].Offset = f.finish(p.Offset, max(endOf(ends, p), p.Offset), r.l.d.clock.now())
	}
	r.l.install(built)
	return places
}

// install puts shards in the place of those of the same partitions, which a
// failed transaction has ended. Those that were not there before are open at
// once; the others are when the transaction has returned, because what was read
// for the former may still come until then.
func (l *lane) install(built []*shard) {
	var fresh []*shard
	l.mu.Lock()
	for _, s := range built {
		if old := l.shards[s.p.number]; old != nil {
			l.ended = append(l.ended, old.end()...)
			s.p.paused = old.p.paused // the consumer knows no difference
		} else {
			fresh = append(fresh, s)
		}
		l.shards[s.p.number] = s
	}
	t, keeps := l.terms, l.keeps
	l.mu.Unlock()
	for _, s := range built { // a rebuild may take long, and the config change meanwhile
		s.do(func(p *partition, now moment) {
			p.retain(keeps)
			if p.terms != t {
				p.apply(t, now)
			}
		})
	}
	for _, s := range fresh {
		s.do(func(p *partition, now moment) { p.open(now) })
	}
	poke(l.asked)
	l.d.shares()
}

// leaving parks what has not ended of partitions that are given up, and waits
// a little for what is under way.
func (l *lane) leaving(ctx context.Context, at []broker.Position) {
	ctx, cancel := context.WithTimeout(ctx, leaveGrace)
	defer cancel()
	var all []*shard
	for _, p := range at {
		if s := l.shard(p.Partition); s != nil {
			s.do(func(p *partition, _ moment) { p.leaving = true })
			all = append(all, s)
		}
	}
	poke(l.work)
	for _, s := range all {
		select {
		case <-s.quiet:
		case <-ctx.Done():
			return
		}
	}
}

// gone ends the shards of partitions that others may have by now.
func (l *lane) gone(at []broker.Position) {
	for _, p := range at {
		l.mu.Lock()
		s := l.shards[p.Partition]
		delete(l.shards, p.Partition)
		l.mu.Unlock()
		if s != nil {
			release(s.end())
		}
	}
	l.d.shares()
}
