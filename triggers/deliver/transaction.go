package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/broker/retry"
)

const (
	beat = 10 * time.Millisecond // interval of the commit loop while there is anything to do
	rest = time.Minute           // interval otherwise
)

// commitLoop runs the pipeline's transactions, one at a time, and sends items whose retry delay is
// over.
func (pl *pipeline) commitLoop() {
	t := time.NewTimer(beat)
	defer t.Stop()
	for pl.life.Err() == nil {
		busy, need := pl.wakeRested()
		if need {
			pl.commit()
		}
		wait := rest
		if busy {
			wait = beat
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-pl.work:
			_ = retry.Sleep(pl.life, beat) // collects more work for one transaction
		case <-pl.life.Done():
		}
	}
}

// wakeRested sends items whose retry delay is over. It reports whether any item is under way and
// whether a transaction is needed now.
func (pl *pipeline) wakeRested() (busy, need bool) {
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, now millis) {
			if p.closed {
				return
			}
			p.wake(now)
			p.release(now)
			busy = busy || p.busy() || p.wanted != nil || len(p.kept) > 0
			need = need || p.deadline(now) <= now || p.leaving && p.busy()
			pl.hold(p, now)
		})
	}
	return busy, need
}

// hold pauses reading of a partition that cannot accept events for a longer time.
func (pl *pipeline) hold(p *partition, now millis) {
	if waits := p.missing || p.skewing(now); waits != p.paused {
		if p.paused = waits; waits {
			pl.c.Pause(pl.stream.Name, p.number)
		} else {
			pl.c.Resume(pl.stream.Name, p.number)
		}
	}
}

// pendingWrite is a partition's part of a transaction.
type pendingWrite struct {
	s       *assignment
	w       *partitionWrite
	begunAt int64
	end     int64 // offset after its last record
}

// commit runs one transaction for all partitions that need one.
func (pl *pipeline) commit() {
	var all []*pendingWrite
	ctx, cancel := context.WithTimeout(pl.life, transactionTime)
	err := pl.tx.Do(ctx, func(tx *broker.Tx) error {
		all = pl.plan(tx)
		for _, one := range all {
			if err := pl.writePart(ctx, tx, one); err != nil {
				return err
			}
		}
		return nil
	})
	cancel()
	if err != nil && pl.life.Err() == nil {
		pl.d.o.Logger.Warn("dispatcher: parking events failed; reading their partitions again", "stream", pl.stream.Name, "reason", err)
	}
	pl.d.counts.transaction(err)
	for _, one := range all {
		pl.conclude(one, err)
	}
	if errors.Is(err, broker.ErrTooLarge) {
		pl.lowerLimit(all)
	}
	pl.reopen()
	if err != nil {
		_ = retry.Sleep(pl.life, retryPause)
	}
}

const (
	transactionTime = 8 * time.Second // below Kafka's limit of ten seconds
	retryPause      = 200 * time.Millisecond
)

// plan asks every partition for its part of the transaction. The mark is set under the
// assignment's lock and only if the partition is ours, so each part belongs to the
// assignment of its mark. If the transaction fails, each partition with a part in it is
// rebuilt or lost. A partition that was not read again would stay closed.
func (pl *pipeline) plan(tx *broker.Tx) []*pendingWrite {
	var all []*pendingWrite
	room := newAllowance()
	for _, s := range pl.assignmentsNow() { // in random order
		s.apply(func(p *partition, now millis) {
			at := broker.Position{Stream: pl.parked(), Partition: p.number}
			if p.closed || !tx.Mine(at) {
				return
			}
			if w := p.plan(room, now, p.leaving); w != nil {
				at.Offset = w.mark
				tx.Mark(at)
				all = append(all, &pendingWrite{s: s, w: w, begunAt: none})
			}
		})
	}
	return all
}

// writePart writes a partition's part into the transaction.
func (pl *pipeline) writePart(ctx context.Context, tx *broker.Tx, one *pendingWrite) error {
	w, n := one.w, one.s.p.number
	for _, s := range w.batches {
		if s.frozen {
			tx.Done(s.delivery)
		}
	}
	if w.begun != nil {
		data, err := json.Marshal(w.begun)
		if err != nil {
			return fmt.Errorf("write down which triggers have begun: %w", err)
		}
		tx.SendTo(ctx, pl.parked(), n, pl.stateEvent(tidemill.TypeParkedBegun, n, data), func(r broker.Receipt) { one.begunAt, one.end = r.Offset, r.Offset+1 })
	}
	for i := range w.parks {
		k := &w.parks[i]
		k.record.next = w.next
		v, err := k.record.wrap(&k.item.event.view)
		if err != nil {
			return err
		}
		tx.SendTo(ctx, pl.parked(), n, &v, func(r broker.Receipt) { k.at, one.end = r.Offset, r.Offset+1 })
	}
	if len(w.settled) > 0 {
		one.s.mu.Lock()
		data, err := one.s.p.encodeSettled(w.settled)
		one.s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("record the ended deliveries: %w", err)
		}
		tx.SendTo(ctx, pl.parked(), n, pl.stateEvent(tidemill.TypeParkedSettled, n, data), func(r broker.Receipt) { one.end = r.Offset + 1 })
	}
	return nil
}

// lowerLimit reacts to a transaction that was too large for Kafka, whose limit may be
// lower than our config knows. From now on an event of that size cannot be parked, and it
// becomes a dead letter when it is read again. The history of attempts is left out first.
func (pl *pipeline) lowerLimit(all []*pendingWrite) {
	largest := 0
	for _, one := range all {
		for n := range one.w.parks {
			largest = max(largest, parked.Size(&one.w.parks[n].item.event.view))
		}
	}
	pl.mu.Lock()
	pl.maxEvent = min(pl.maxEvent, max(largest-1, leastParked))
	event := pl.maxEvent
	pl.mu.Unlock()
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, _ millis) { p.bounds.event = event })
	}
}

// leastParked is a size that every stream accepts.
const leastParked = 16 << 10

// stateEvent returns an event about the partition's own state.
func (pl *pipeline) stateEvent(typ string, partition int32, data []byte) *broker.View {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return &broker.View{ID: tidemill.ID(typ, pl.stream.Name, strconv.Itoa(int(partition)), now, string(data)), Source: pl.d.names.Source("dispatcher"),
		Type: typ, Time: now, DataContentType: "application/json", DataSchema: tidemill.Schema(typ), Data: data}
}

// conclude reports the outcome of a transaction to a partition. After a failure a new
// assignment has replaced the old one, or the partition is lost.
func (pl *pipeline) conclude(one *pendingWrite, err error) {
	if err != nil {
		left := one.s.stopDelivery()
		pl.mu.Lock()
		pl.returned = append(pl.returned, left...)
		pl.mu.Unlock()
		return
	}
	one.s.apply(func(p *partition, now millis) { p.commit(one.w, one.begunAt, one.end, now) })
	if one.w.replayed != nil {
		notify(pl.commandsRead)
	}
}

// reopen lets rebuilt partitions accept events, because no event of the old assignment
// can come now.
func (pl *pipeline) reopen() {
	pl.mu.Lock()
	ended := pl.returned
	pl.returned = nil
	pl.mu.Unlock()
	release(slices.DeleteFunc(ended, func(s *sourceBatch) bool { return s.frozen })) // the transaction ends the frozen ones
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, now millis) {
			if !p.opened && !p.closed {
				p.open(now)
			}
		})
	}
}

const (
	trimEvery  = time.Minute
	trimWithin = 30 * time.Second
)

// trimLoop deletes the records of the parked log that no rebuild reads any more. Otherwise a stream
// that is kept for ever would keep its parked events for ever, too. Only the owner of a partition
// deletes, and only below a mark that was committed at the time of the loop's previous turn. A former
// owner knows a lower mark, so it deletes less.
func (pl *pipeline) trimLoop() {
	t := time.NewTicker(trimEvery)
	defer t.Stop()
	var before []broker.Position
	for denied := false; !denied; {
		select {
		case <-t.C:
		case <-pl.life.Done():
			return
		}
		before, denied = pl.trim(before)
	}
}

// trim deletes records below the marks of the previous turn. It returns the present marks, and whether
// the Kafka user has no right to delete.
func (pl *pipeline) trim(before []broker.Position) (marks []broker.Position, denied bool) {
	ctx, cancel := context.WithTimeout(pl.life, trimWithin)
	defer cancel()
	var below []broker.Position
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, _ millis) {
			if p.closed || p.missing || p.mark <= 0 {
				return
			}
			marks = append(marks, broker.Position{Stream: pl.parked(), Partition: p.number, Offset: p.mark})
			for _, old := range before {
				if old.Partition == p.number && old.Offset > p.trimmed {
					below = append(below, old)
				}
			}
		})
	}
	if len(below) == 0 {
		return marks, false
	}
	err := pl.d.o.Broker.DeleteBelow(ctx, below)
	switch {
	case err == nil:
		pl.trimmed(below)
	case errors.Is(err, broker.ErrMayNotDelete):
		pl.d.o.Logger.Warn("dispatcher: deleting records of ended events failed; the parked stream keeps them for its retention", "stream", pl.stream.Name, "reason", err)
		return nil, true
	case pl.life.Err() == nil:
		pl.d.o.Logger.Warn("dispatcher: deleting records of ended events failed; retrying", "stream", pl.stream.Name, "reason", err)
	}
	return marks, false
}

func (pl *pipeline) trimmed(below []broker.Position) {
	for _, b := range below {
		if s := pl.assignment(b.Partition); s != nil {
			s.apply(func(p *partition, _ millis) { p.trimmed = max(p.trimmed, b.Offset) })
		}
	}
}
