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

// Append puts a fact on the log and returns where it lies and the making that
// the log gave it, all facts before and perhaps some behind it folded in. The
// view needs Type, Subject (the key), ID, Source, the recipe's attribute and
// data; its record key is set here.
//
// While Redis does not hold all facts it waits, as long as the context allows.
// Then the error is an [AppendedError]: the fact counts all the same.
func (l *Ledger) Append(ctx context.Context, v *broker.View) (broker.Position, *fold.Making, error) {
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	if recipe == "" || typeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that runs have, or it names no recipe", v.ID, v.Type)
	}
	member := tidemill.RunKey(recipe, v.Subject)
	v.Key = []byte(member)
	at, m, err := appended[fold.Making](ctx, l, v, place{hashMakings, member})
	if m != nil && m.Next == 0 {
		m.Recipe, m.Key = recipe, v.Subject
	}
	return at, m, err
}

// AppendModel is Append for the facts of a model. The view needs the model's
// attribute besides what Append says, and of the recipe's none.
func (l *Ledger) AppendModel(ctx context.Context, v *broker.View) (broker.Position, *fold.Model, error) {
	name, _ := v.Attribute(tidemill.AttrModel)
	if modelTypeOf(v.Type) == "" {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: type %q is not one that decides about models", v.ID, v.Type)
	}
	if err := tidemill.CheckDataset(name); err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: its model's name %q: %w", v.ID, name, err)
	}
	v.Key = []byte(tidemill.ModelKey(name))
	at, m, err := appended[fold.Model](ctx, l, v, place{hashModels, name})
	if m != nil {
		m.Name = name
	}
	return at, m, err
}

// appended publishes a fact and waits until it has been folded in.
func appended[T any](ctx context.Context, l *Ledger, v *broker.View, of place) (broker.Position, *T, error) {
	receipt, err := l.o.Producer.Publish(ctx, tidemill.StreamFacts, v)
	if err != nil {
		return broker.Position{}, nil, fmt.Errorf("append fact %s: %w", v.ID, err)
	}
	at, placed := receipt.Position(), receipt.Offset >= 0
	if !placed {
		if at, err = l.end(ctx, at); err != nil {
			return at, nil, &AppendedError{at, err}
		}
	}
	w, state := l.progress.await(at.Partition, at.Offset, of)
	if w != nil && placed {
		l.offer(v, at)
	}
	state, err = l.outcome(ctx, w, state, at, of)
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

// end stands for the place of a fact of which Kafka knows only that it has it.
func (l *Ledger) end(ctx context.Context, at broker.Position) (broker.Position, error) {
	ends, err := l.ends(ctx)
	at.Offset = ends[at.Partition] - 1
	return at, err
}

// outcome waits until a fact has been folded in, if there is a waiter for it, and is
// what became of what it is about; nil if that is nothing.
func (l *Ledger) outcome(ctx context.Context, w *waiter, state []byte, at broker.Position, of place) ([]byte, error) {
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
		return l.folded(ctx, at, of)
	}
	return state, nil
}

// folded reads what another process has folded the fact into. If Redis has
// forgotten that meanwhile, it waits until it knows it again.
func (l *Ledger) folded(ctx context.Context, at broker.Position, of place) ([]byte, error) {
	for {
		changed := l.progress.changes()
		next, state, err := readState(ctx, l.o.Redis, l.prefix, at.Partition, of)
		switch {
		case err != nil:
			return nil, err
		case next > at.Offset:
			return state, nil
		}
		l.doubt.raise()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrCatchingUp, context.Cause(ctx))
		}
	}
}

// own are facts that this process has put on the log and waits for. Kafka has told
// where they lie: if that is the very next place of their partition, nothing can
// come between, and they can be folded without being read back first. In a busy
// cluster that wait is the longer half of putting a fact on the log, for all who
// follow the facts are told of one at once.
//
// It is a shortcut and nothing else. A fact that lies further on, behind others'
// facts, behind the marker of a transaction or in a transaction that is open, is
// left to be read; and one that is read again has been applied.
type own struct {
	mu    sync.Mutex
	facts []fold.Fact
}

func (o *own) add(f fold.Fact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.facts = append(o.facts, f)
}

func (o *own) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.facts) > 0
}

func (o *own) take() []fold.Fact {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.facts
	o.facts = nil
	return all
}

// offer has a fact folded that Kafka has said where it put it. Only what the log
// gives back as it was given will do: a fact that has no time of its own gets
// Kafka's.
func (l *Ledger) offer(v *broker.View, at broker.Position) {
	if when, err := time.Parse(time.RFC3339Nano, v.Time); err != nil || !believable(when) {
		return
	}
	e := broker.Incoming{View: *v, Offset: at.Offset}
	if f, kind := read(&e, at.Partition); kind == legible {
		l.own.add(f)
		l.doubt.nudge()
	}
}

// takeOwn takes those facts in that lie right behind what the batch has, or behind
// what has been folded.
func (l *Ledger) takeOwn(b *batch) {
	all := l.own.take()
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
			p = &part{partition: f.Partition, from: next}
			b.parts[f.Partition] = p
		}
		p.facts, p.next = append(p.facts, f), f.Offset+1
		b.facts++
		b.bytes += len(f.Data)
	}
}

const (
	// farBehind makes it worth while to catch up with few partitions at a time:
	// then their makings stay on the shelf until they are done with, and a batch
	// has many facts of each.
	farBehind = 50_000

	// keptNear and keptFar are how many makings of a partition are kept at least.
	keptNear, keptFar = 256, 4096
)

// convoy lets few partitions be read at a time, until they have come to their
// ends. An empty one lets all.
type convoy struct {
	c       *broker.Consumer
	active  map[int32]bool
	waiting []int32
	ends    map[int32]int64
}

// convoy pauses all partitions but a few if there is far to go.
func (l *Ledger) convoy(c *broker.Consumer) *convoy {
	behind, ends := l.progress.distance()
	v := &convoy{c: c, ends: ends, active: map[int32]bool{}}
	if l.kept, l.far = keptNear, nil; behind < l.o.far {
		return v
	}
	l.kept, l.far = keptFar, ends
	for _, partition := range from(rand.Int(), slices.Sorted(maps.Keys(ends))) {
		if len(v.active) < mostLanes {
			v.active[partition] = true
			continue
		}
		c.Pause(tidemill.StreamFacts, partition)
		v.waiting = append(v.waiting, partition)
	}
	return v
}

// from begins a list elsewhere: several processes that find Redis empty at the same
// time then have most of the work of one another.
func from(place int, all []int32) []int32 {
	at := place % max(len(all), 1)
	return slices.Concat(all[at:], all[:at])
}

// relieve lets the next partition be read for each that has come to its end, and
// one more if nothing comes of any: there may be nothing but markers left. It
// tells of those that are done.
func (v *convoy) relieve(reached func(int32) int64, idle bool) (done []int32) {
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
