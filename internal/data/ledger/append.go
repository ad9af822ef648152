package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// Append puts a fact about a run on the log. It returns the fact's position and the making
// after the fact; perhaps later facts are folded in too. The view needs Type, Subject (the
// key), ID, Source, the recipe's attribute and data. Append sets its record key.
//
// Append waits until Redis has the fact. If the context ends before, the error is an
// [AppendedError]: the fact is on the log and counts.
func (l *Ledger) Append(ctx context.Context, v *broker.View) (broker.Position, *fold.Making, error) {
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	if recipe == "" || typeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that runs have, or it names no recipe", v.ID, v.Type)
	}
	member := tidemill.RunKey(recipe, v.Subject)
	v.Key = []byte(member)
	at, m, err := appendFact[fold.Making](ctx, l, v, place{hashMakings, member})
	if m != nil && m.Next == 0 {
		m.Recipe, m.Key = recipe, v.Subject
	}
	return at, m, err
}

// AppendModel is like Append, for a fact about a model. The view needs the model's attribute
// instead of the recipe's.
func (l *Ledger) AppendModel(ctx context.Context, v *broker.View) (broker.Position, *fold.Model, error) {
	name, _ := v.Attribute(tidemill.AttrModel)
	if modelTypeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that decides about models", v.ID, v.Type)
	}
	if err := tidemill.CheckDataset(name); err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: its model's name %q: %w", v.ID, name, err)
	}
	v.Key = []byte(tidemill.ModelKey(name))
	at, m, err := appendFact[fold.Model](ctx, l, v, place{hashModels, name})
	if m != nil {
		m.Name = name
	}
	return at, m, err
}

// appendFact publishes a fact and waits until it has been folded in. It publishes nothing if the ledger
// has stopped, because the order of the facts may be lost.
func appendFact[T any](ctx context.Context, l *Ledger, v *broker.View, of place) (broker.Position, *T, error) {
	if err := l.progress.stopped(); err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: %w: %w", v.ID, ErrCatchingUp, err)
	}
	fill, partition, reached := l.progress.reachedOf(v.Key)
	receipt, err := l.o.Producer.Publish(ctx, tidemill.StreamFacts, v)
	if err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: %w", v.ID, err)
	}
	at, placed := receipt.Position(), receipt.Offset >= 0
	if !placed {
		if at, err = l.lastOffset(ctx, at); err != nil {
			return at, nil, &AppendedError{at, err}
		}
	}
	if placed && at.Partition == partition && at.Offset < reached { // the log had more facts before this one
		if err := l.awaitOtherFilling(ctx, fill); err != nil {
			return at, nil, &AppendedError{at, err}
		}
	}
	w, state := l.progress.await(at.Partition, at.Offset, of)
	if w != nil && placed {
		l.offer(v, at)
	}
	state, err = l.awaitOutcome(ctx, w, state, at, of)
	if err != nil {
		return at, nil, &AppendedError{at, err}
	}
	m := new(T)
	if state == nil {
		return at, m, nil
	}
	if err := json.Unmarshal(state, m); err != nil {
		return at, nil, &AppendedError{at, fmt.Errorf("read what %s of %s is: %w", of.hash, of.member, err)}
	}
	return at, m, nil
}

// awaitOtherFilling waits until Redis has another filling. The log was cut, because a fact has got an
// offset that this filling had before.
func (l *Ledger) awaitOtherFilling(ctx context.Context, fill string) error {
	for {
		changed := l.progress.changes()
		if now, _ := l.progress.known(); now.fill != fill { // it fails while it catches up
			return nil
		}
		l.suspected.Store(true)
		l.recheck.request()
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx)), ErrCut)
		}
	}
}

// lastOffset returns the offset before the end of the partition, as the position of a fact that
// Kafka has stored without reporting its offset.
func (l *Ledger) lastOffset(ctx context.Context, at broker.Position) (broker.Position, error) {
	ends, err := l.ends(ctx)
	at.Offset = ends[at.Partition] - 1
	return at, err
}

// awaitOutcome waits until a fact has been folded in, if there is a waiter for it. It returns the
// state of the fact's making or model; nil if there is none.
func (l *Ledger) awaitOutcome(ctx context.Context, w *waiter, state []byte, at broker.Position, of place) ([]byte, error) {
	if w != nil {
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx)), l.progress.giveUp(at.Partition, w))
		}
		if w.err != nil {
			return nil, w.err
		}
		state = w.state
	}
	if state == nil {
		return l.readFolded(ctx, at, of)
	}
	return state, nil
}

// readFolded reads the state from Redis, because another process has folded the fact in. If
// Redis has forgotten it since, folded waits until Redis has it again.
func (l *Ledger) readFolded(ctx context.Context, at broker.Position, of place) ([]byte, error) {
	for {
		changed := l.progress.changes()
		least, _ := l.progress.known() // it fails while it catches up
		seen, next, state, err := readState(ctx, l.o.Redis, l.prefix, at.Partition, of)
		switch {
		case err != nil:
			return nil, err
		case seen.isIntact(least) && next > at.Offset:
			return state, nil
		}
		l.recheck.request()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx))
		}
	}
}

// ownFacts holds facts that this process has put on the log and waits for. Kafka has returned their
// offsets. If a fact is at the next offset of its partition, there is no record between it and the
// folded facts, so it is folded without being read back. In a busy cluster reading back takes more
// than half of an append, because Kafka sends a new fact to all followers at the same time.
//
// This is only a shortcut. A fact at a later offset is read back, because it comes after
// other facts, a transaction's marker or an open transaction. A fact that is read after it
// was applied is ignored.
type ownFacts struct {
	mu    sync.Mutex
	facts []fold.Fact
}

func (o *ownFacts) add(f fold.Fact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts = append(o.facts, f)
}

func (o *ownFacts) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.facts) > 0
}

func (o *ownFacts) take() []fold.Fact {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.facts
	o.facts = nil
	return all
}

// offer queues one of our own facts for folding once Kafka has returned its offset. A fact without
// a valid time is not queued, because Kafka sets its time: only the fact that is read back has it.
func (l *Ledger) offer(v *broker.View, at broker.Position) {
	if when, err := time.Parse(time.RFC3339Nano, v.Time); err != nil || !believable(when) {
		return
	}
	e := broker.Incoming{View: *v, Offset: at.Offset}
	if f, kind := read(&e, at.Partition); kind == legible {
		l.ownFacts.add(f)
		l.recheck.wakeUp()
	}
}

// takeOwn adds those own facts to a batch that directly follow the batch's facts, or the
// facts that have been folded.
func (l *Ledger) takeOwn(b *batch) {
	all := l.ownFacts.take()
	slices.SortFunc(all, func(a, b fold.Fact) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, f := range all {
		p, next := b.parts[f.Partition], l.upTo(f.Partition)
		if p != nil {
			next = max(next, p.next)
		}
		if f.Offset != next {
			continue
		}
		if p == nil {
			p = &batchPart{partition: f.Partition, from: next}
			b.parts[f.Partition] = p
		}
		l.memory.fold(&f)
		p.facts, p.next = append(p.facts, f), f.Offset+1
		b.facts++
		b.bytes += len(f.Data)
	}
}

const (
	// farBehind is the number of facts to catch up with from which only a few partitions are read
	// at a time. With few partitions the makings of a partition stay in memory until its end is
	// reached, and a batch has many facts of each making.
	farBehind = 50_000

	// keptNear and keptFar are the least numbers of makings of a partition that are kept in memory.
	keptNear, keptFar = 256, 4096
)

// partitionLimit limits how many partitions are read at a time, until all have reached their
// ends. An empty one has no limit.
type partitionLimit struct {
	c       *broker.Consumer
	active  map[int32]bool
	waiting []int32
	ends    map[int32]int64
}

// limitPartitions pauses all partitions but a few if there are many facts to catch up with.
func (l *Ledger) limitPartitions(c *broker.Consumer) *partitionLimit {
	behind, ends := l.progress.distance()
	v := &partitionLimit{c: c, ends: ends, active: map[int32]bool{}}
	if l.kept, l.far = keptNear, nil; behind < l.o.far {
		return v
	}
	l.kept, l.far = keptFar, ends
	for _, partition := range rotate(rand.Int(), slices.Sorted(maps.Keys(ends))) {
		if len(v.active) < mostLanes {
			v.active[partition] = true
			continue
		}
		c.Pause(tidemill.StreamFacts, partition)
		v.waiting = append(v.waiting, partition)
	}
	return v
}

// rotate rotates a list. Several processes may find Redis empty at the same time. Each begins
// with other partitions, so that they do not all fold the same facts.
func rotate(place int, all []int32) []int32 {
	at := place % max(len(all), 1)
	return slices.Concat(all[at:], all[:at])
}

// resume continues a paused partition for each that has reached its end. If no partition delivers
// anything, resume continues one more partition, because only markers of transactions may be left.
// It returns the partitions that have reached their ends.
func (v *partitionLimit) resume(reached func(int32) int64, idle bool) (done []int32) {
	for partition := range v.active {
		if reached(partition) >= v.ends[partition] {
			delete(v.active, partition)
			done = append(done, partition)
		}
	}
	for len(v.waiting) > 0 && (len(v.active) < mostLanes || idle) {
		next := v.waiting[0]
		v.waiting, idle = v.waiting[1:], false
		v.active[next] = true
		v.c.Resume(tidemill.StreamFacts, next)
	}
	return done
}
