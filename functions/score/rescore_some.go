package score

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// rescoreBytes is how much of the log is read for one transaction.
const rescoreBytes = 1 << 20

// scoreNext scores the next events of a range.
func (r *rescore) scoreNext(ctx context.Context, s *rescoreRange) error {
	b := r.batch
	b.reset(b.seq + 1)
	b.stamp = time.Now().UTC().AppendFormat(b.stamp[:0], time.RFC3339Nano)
	t := newAssignment(r.Config.From, s.partition, s.partition%r.to)
	first := s.end // offset of the first record that is read
	next, err := r.Broker.Read(ctx, broker.Position{Stream: r.Config.From, Partition: s.partition, Offset: s.next}, rescoreBytes, func(e *broker.Incoming) bool {
		if e.Offset >= s.next && e.Offset < s.end {
			first = min(first, e.Offset)
			r.choose(b, e, t)
		}
		return e.Offset < s.end
	})
	if err != nil {
		return err
	}
	if next <= s.next {
		return r.handleEmptyRead(ctx, s)
	}
	if err := r.countDeleted(ctx, s, min(first, next)); err != nil {
		return err
	}
	for next = min(next, s.end); ; {
		b.sort()
		if err := r.resolve(ctx, b); err != nil {
			b.release()
			return err
		}
		if err := r.compute(ctx, b); err != nil {
			return err
		}
		full := b.firstWithoutRoom()
		if full < 0 {
			return r.commit(ctx, b, s, next)
		}
		rest := slices.Clone(b.items[full:])
		b.items = b.items[:full]
		if err := r.commit(ctx, b, s, rest[0].offset); err != nil {
			return err
		}
		b.reset(b.seq + 1)
		for _, it := range rest {
			r.add(b, item{v: it.v, offset: it.offset, delivery: it.delivery})
		}
	}
}

// countDeleted counts the records of a range that retention has deleted, given the offset of the first that was read.
// Markers of transactions take offsets, too.
func (r *rescore) countDeleted(ctx context.Context, s *rescoreRange, first int64) error {
	if first == s.next {
		return nil
	}
	starts, err := r.Broker.Places(ctx, r.Config.From, broker.Earliest())
	if err != nil {
		return err
	}
	for _, p := range starts {
		if p.Partition == s.partition {
			r.told.Deleted += max(min(p.Offset, first)-s.next, 0)
		}
	}
	return nil
}

// firstWithoutRoom returns the index of the first item for whose answer the batch had no room; -1 if there is none. The later
// items have to wait too, because the answers to a key are in order.
func (b *batch) firstWithoutRoom() int {
	return slices.IndexFunc(b.items, func(it item) bool { return it.verdict == waiting && it.reason == nil })
}

// handleEmptyRead handles a read without records. Either the log has lost its end and the rest of the
// range with it, or the records are not visible yet.
func (r *rescore) handleEmptyRead(ctx context.Context, s *rescoreRange) error {
	ends, err := r.Broker.Ends(ctx, r.Config.From)
	if err != nil {
		return err
	}
	if int(s.partition) < len(ends) && ends[s.partition].Offset >= s.end {
		_ = retry.Sleep(ctx, unseen)
		return ctx.Err()
	}
	r.told.Left -= s.end - s.next
	s.next = s.end
	return nil
}

// unseen is the wait before records that are not visible yet are read again.
const unseen = 50 * time.Millisecond

// choose adds an event to the batch. It copies the event, because the read's memory is reused.
func (r *rescore) choose(b *batch, e *broker.Incoming, t *assignment) {
	switch f := r.done[t.partition]; {
	case e.Err != nil || !selects(r.Config.Types, e.Type):
		r.told.Passed++
		return
	case f != nil && f.hasOutput(&e.View, e.Offset):
		r.told.Skipped++
		return
	}
	v := e.View.Clone()
	r.add(b, item{v: &v, offset: e.Offset, delivery: &inFlight{of: t}})
}

// add adds an event to the batch.
func (r *rescore) add(b *batch, it item) {
	key, err := r.place.keyOf(it.v)
	if err == nil {
		it.key, err = r.cache.entryOf(key)
	}
	if err != nil {
		it.verdict, it.reason = dead, err
	} else {
		b.join(&it, it.key.target)
	}
	b.items = append(b.items, it)
}

// resolve finds the version of each model and waits until it is loaded.
func (r *rescore) resolve(ctx context.Context, b *batch) error {
	for i := range b.groups {
		g := &b.groups[i]
		m, err := r.model(ctx, g.target.name)
		if err == nil {
			g.plan, err = r.plans.planFor(m)
		}
		switch {
		case err == nil:
			g.model, g.ref, g.version = m, m.Ref(), strconv.Itoa(m.Ref().Version)
			continue
		case m != nil:
			m.Release()
		case ctx.Err() != nil:
			return err
		case !forGood(err):
			return err
		}
		for _, n := range b.itemsOf(g) {
			b.items[n].verdict, b.items[n].reason = dead, err
		}
	}
	return nil
}

// forGood reports whether a retry is useless.
func forGood(err error) bool {
	return errors.Is(err, ErrNoModel) || errors.Is(err, errUnloadable) || errors.Is(err, infer.ErrUnfit) || errors.Is(err, champions.ErrNoVersion)
}

func (r *rescore) model(ctx context.Context, name string) (*infer.Model, error) {
	switch r.Version {
	case VersionChampion:
		m, err := await(ctx, r.Models, name, true)
		if n := r.Config.NoModel; errors.Is(err, ErrNoModel) && n.Action == config.NoModelUse {
			return await(ctx, r.Models, n.Model, true)
		}
		return m, err
	case VersionPrevious:
		c, _ := r.Champions.Champion(name)
		if c.Previous == 0 {
			return nil, fmt.Errorf("model %s %w before the present one", name, ErrNoModel)
		}
		return r.Models.At(ctx, name, c.Previous)
	}
	n, err := strconv.Atoi(r.Version)
	if err != nil {
		return nil, err
	}
	return r.Models.At(ctx, name, n)
}

// awayTries bounds the time that a batch waits for ONNX Runtime's process: 12 s.
const awayTries = 8

// compute scores the batch. It waits a while for ONNX Runtime's process, if that is away.
func (r *rescore) compute(ctx context.Context, b *batch) error {
	defer b.release()
	b.filled.Store(0)
	for times := 1; ; times++ {
		b.divide()
		b.next.Store(0)
		var all sync.WaitGroup
		for i, w := range r.workers {
			all.Go(func() { w.work(b, i) })
		}
		all.Wait()
		if times == awayTries || !b.again() {
			return nil
		}
		if err := retry.Sleep(ctx, awayWait(times)); err != nil {
			return err
		}
	}
}

// again prepares the items that wait for ONNX Runtime's process for another try, and reports whether there are any.
func (b *batch) again() (some bool) {
	for i := range b.items {
		if it := &b.items[i]; it.verdict == waiting && it.reason != nil {
			it.verdict, it.reason, some = scoring, nil, true
		}
	}
	if some {
		b.units = b.units[:0]
		b.sort()
	}
	return some
}

// commit writes the outputs and the progress.
func (r *rescore) commit(ctx context.Context, b *batch, s *rescoreRange, next int64) error {
	at := rescoreRange{partition: s.partition, next: next, end: s.end}
	err := r.x.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for i := range b.items {
			if it := &b.items[i]; it.verdict == scored {
				tx.SendTo(ctx, r.Stream, it.delivery.of.to, r.out.scored(b, it), r.storeOffset)
			}
		}
		r.storeProgress(tx, at)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range b.items {
		r.count(s, &b.items[i])
	}
	r.told.Left -= next - s.next
	*s = at
	return nil
}

// storeOffset stores the offset of a committed output.
func (r *rescore) storeOffset(at broker.Receipt) {
	for len(r.note.Answers) <= int(at.Partition) {
		r.note.Answers = append(r.note.Answers, 0)
	}
	r.note.Answers[at.Partition] = max(r.note.Answers[at.Partition], at.Offset+1)
}

func (r *rescore) count(s *rescoreRange, it *item) {
	if it.verdict == scored {
		r.told.Scored++
		return
	}
	r.told.Unscored++
	if len(r.told.Reasons) < mostReasons {
		if r.told.Reasons == nil {
			r.told.Reasons = map[string]string{}
		}
		r.told.Reasons[fmt.Sprintf("%s/%d/%d", r.Config.From, s.partition, it.offset)] = it.reason.Error()
	}
}
