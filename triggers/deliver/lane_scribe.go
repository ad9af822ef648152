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
)

const (
	beat = 10 * time.Millisecond // of the scribe, while there is anything to do
	rest = time.Minute           // between two looks otherwise
)

// scribe runs the lane's transactions, one at a time, and wakes what rests.
func (l *lane) scribe() {
	t := time.NewTimer(beat)
	defer t.Stop()
	for l.life.Err() == nil {
		busy, need := l.look()
		if need {
			l.transact()
		}
		wait := rest
		if busy {
			wait = beat
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-l.work:
			l.pause(beat) // for company
		case <-l.life.Done():
		}
	}
}

func (l *lane) pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.life.Done():
	}
}

// look wakes what has rested enough, and tells whether anything is under way
// and whether a transaction is needed now.
func (l *lane) look() (busy, need bool) {
	for _, s := range l.all() {
		s.do(func(p *partition, now moment) {
			if p.closed {
				return
			}
			p.wake(now)
			p.release(now)
			busy = busy || p.busy() || p.wanted != nil || len(p.kept) > 0
			need = need || p.deadline(now) <= now || p.leaving && p.busy()
			l.hold(p, now)
		})
	}
	return busy, need
}

// hold stops reading a partition that cannot take in what is read for long.
func (l *lane) hold(p *partition, now moment) {
	if waits := p.missing || p.skewing(now); waits != p.paused {
		if p.paused = waits; waits {
			l.c.Pause(l.stream.Name, p.number)
		} else {
			l.c.Resume(l.stream.Name, p.number)
		}
	}
}

// written is a partition's part of a transaction.
type written struct {
	s       *shard
	w       *write
	begunAt int64
	end     int64 // behind its last record
}

// transact runs one transaction for all partitions that need one.
func (l *lane) transact() {
	var all []*written
	ctx, cancel := context.WithTimeout(l.life, transactionTime)
	err := l.tx.Do(ctx, func(tx *broker.Tx) error {
		all = l.plan(tx)
		for _, one := range all {
			if err := l.put(ctx, tx, one); err != nil {
				return err
			}
		}
		return nil
	})
	cancel()
	if err != nil && l.life.Err() == nil {
		l.d.o.Logger.Warn("what waits could not be parked; its partitions are read anew", "stream", l.stream.Name, "reason", err)
	}
	l.d.counts.transaction(err)
	for _, one := range all {
		l.conclude(one, err)
	}
	if errors.Is(err, broker.ErrTooLarge) {
		l.narrow(all)
	}
	l.reopen()
	if err != nil {
		l.pause(retryPause)
	}
}

const (
	transactionTime = 8 * time.Second // Kafka ends one after ten
	retryPause      = 200 * time.Millisecond
)

// plan asks every partition what it has to write. The mark is made under the
// shard's lock, and nothing is asked of a partition that has none: so what is
// written belongs to the tenure that the mark stands for, and if the transaction
// fails, each partition that has planned for it is rebuilt or lost. One that had
// not been read anew would stay closed.
func (l *lane) plan(tx *broker.Tx) []*written {
	var all []*written
	room := newAllowance()
	for _, s := range l.all() { // in random order
		s.do(func(p *partition, now moment) {
			at := broker.Position{Stream: l.parked(), Partition: p.number}
			if p.closed || !tx.Mine(at) {
				return
			}
			if w := p.plan(room, now, p.leaving); w != nil {
				at.Offset = w.mark
				tx.Mark(at)
				all = append(all, &written{s: s, w: w, begunAt: none})
			}
		})
	}
	return all
}

// put writes a partition's part into the transaction.
func (l *lane) put(ctx context.Context, tx *broker.Tx, one *written) error {
	w, n := one.w, one.s.p.number
	for _, s := range w.slabs {
		if s.frozen {
			tx.Done(s.delivery)
		}
	}
	if w.begun != nil {
		data, err := json.Marshal(w.begun)
		if err != nil {
			return fmt.Errorf("write down which triggers have begun: %w", err)
		}
		tx.SendTo(ctx, l.parked(), n, l.note(tidemill.TypeParkedBegun, n, data), func(r broker.Receipt) { one.begunAt, one.end = r.Offset, r.Offset+1 })
	}
	for i := range w.parks {
		k := &w.parks[i]
		k.record.next = w.next
		v, err := k.record.wrap(&k.item.event.view)
		if err != nil {
			return err
		}
		tx.SendTo(ctx, l.parked(), n, &v, func(r broker.Receipt) { k.at, one.end = r.Offset, r.Offset+1 })
	}
	if len(w.settled) > 0 {
		one.s.mu.Lock()
		data, err := one.s.p.encodeSettled(w.settled)
		one.s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("write down what has ended: %w", err)
		}
		tx.SendTo(ctx, l.parked(), n, l.note(tidemill.TypeParkedSettled, n, data), func(r broker.Receipt) { one.end = r.Offset + 1 })
	}
	return nil
}

// narrow learns from a transaction that was too large for Kafka, which may take
// less than a config of ours knows of: one event less can be parked from now on.
// As it is read anew, it becomes a dead letter. A history is left out rather.
func (l *lane) narrow(all []*written) {
	largest := 0
	for _, one := range all {
		for n := range one.w.parks {
			largest = max(largest, viewSize(&one.w.parks[n].item.event.view))
		}
	}
	l.mu.Lock()
	l.event = min(l.event, max(largest-1, leastParked))
	event := l.event
	l.mu.Unlock()
	for _, s := range l.all() {
		s.do(func(p *partition, _ moment) { p.bounds.event = event })
	}
}

// leastParked is what any stream takes.
const leastParked = 16 << 10

// note is an event of our own bookkeeping.
func (l *lane) note(typ string, partition int32, data []byte) *broker.View {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return &broker.View{ID: tidemill.ID(typ, l.stream.Name, strconv.Itoa(int(partition)), now, string(data)), Source: l.d.names.Source("dispatcher"),
		Type: typ, Time: now, DataContentType: "application/json", DataSchema: tidemill.Schema(typ), Data: data}
}

// conclude tells a partition how its transaction went. After a failure a new
// shard has its place already, or the partition is lost.
func (l *lane) conclude(one *written, err error) {
	if err != nil {
		left := one.s.end()
		l.mu.Lock()
		l.ended = append(l.ended, left...)
		l.mu.Unlock()
		return
	}
	one.s.do(func(p *partition, now moment) { p.commit(one.w, one.begunAt, one.end, now) })
	if one.w.intake != nil {
		poke(l.asked)
	}
}

// reopen lets partitions that were rebuilt take in what is read, now that
// nothing more comes of what was read before.
func (l *lane) reopen() {
	l.mu.Lock()
	ended := l.ended
	l.ended = nil
	l.mu.Unlock()
	release(slices.DeleteFunc(ended, func(s *slab) bool { return s.frozen })) // the frozen are the transaction's
	for _, s := range l.all() {
		s.do(func(p *partition, now moment) {
			if !p.opened && !p.closed {
				p.open(now)
			}
		})
	}
}
