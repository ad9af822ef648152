package clock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// desk is where an active keeper reads and writes. Kafka stands behind it; the
// tests of the loop in virtual time put memory there.
type desk struct {
	read func(context.Context) (*Book, error)
	// seen are the ids of the ticks that were sent since the book's newest
	// transaction began.
	seen func(context.Context, *Book) (map[string]bool, error)
	// write sends ticks and their mark, both or neither.
	write func(ctx context.Context, stream string, ticks []tick, m mark) error
	close func()
}

// ledger is the desk on Kafka.
type ledger struct {
	broker *broker.Broker
	names  tidemill.Names
	verify bool
	name   *broker.Exclusive
}

// writeWithin is longer than Kafka lets a transaction be open.
const writeWithin = 20 * time.Second

// openDesk takes the keeper's transactional id. From then on no other keeper can
// commit anything, so that what is read behind it stays true.
func openDesk(ctx context.Context, o *Options) (*desk, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	name, err := o.Broker.Exclusive(ctx, reader, broker.ProducerOptions{})
	if err != nil {
		return nil, fmt.Errorf("take the clock over: %w", err)
	}
	l := &ledger{broker: o.Broker, names: o.Names, verify: o.Verify, name: name}
	return &desk{
		read:  func(ctx context.Context) (*Book, error) { return Read(ctx, l.broker) },
		seen:  l.seen,
		write: l.write,
		close: l.close,
	}, nil
}

// close waits for nothing: every transaction has ended, or has been given up.
func (l *ledger) close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.name.Close(ctx)
}

// write notes first where the ticks' stream ends, for who may have to look
// whether they came to stand there.
func (l *ledger) write(ctx context.Context, stream string, ticks []tick, m mark) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	m.Turn, m.Sent = rand.Text(), batches(ticks)
	if l.verify {
		ends, err := l.broker.Ends(ctx, stream)
		if err != nil {
			return err
		}
		for _, end := range ends {
			m.Ends = append(m.Ends, place{end.Stream, end.Partition, end.Offset})
		}
	}
	began := broker.Position{Stream: tidemill.StreamClock}
	err := l.name.Do(ctx, func(tx *broker.ExclusiveTx) error {
		for i := range ticks {
			v := ticks[i].view(l.names)
			tx.Send(ctx, stream, &v)
		}
		for i, page := range m.pages() {
			v, err := page.view(l.names, i)
			if err != nil {
				return err
			}
			var done func(broker.Receipt)
			if i == 0 {
				done = func(r broker.Receipt) { began.Offset = r.Offset }
			}
			tx.SendTo(ctx, tidemill.StreamClock, 0, &v, done)
		}
		return nil
	})
	if err == nil && m.Full {
		// Where it lies is known only now, so this is a transaction of its own.
		err = l.name.Do(ctx, func(tx *broker.ExclusiveTx) error { tx.Mark(reader, began); return nil })
	}
	if err != nil {
		return fmt.Errorf("send %d ticks and mark them: %w", len(ticks), err)
	}
	return nil
}

// readAtOnce is how much of a stream one request asks for.
const readAtOnce = 4 << 20

// seen reads the ticks' stream back from where it ended before the newest
// transaction. A transaction of Kafka's is there whole or not at all, and there
// is nothing to look for; the embedded Kafka's may be torn when it is killed.
func (l *ledger) seen(ctx context.Context, b *Book) (map[string]bool, error) {
	ids := map[string]bool{}
	if !l.verify || len(b.ends) == 0 {
		for _, t := range b.ticks() {
			ids[t.id()] = true
		}
		return ids, nil
	}
	stream := b.ends[0].Stream
	ends, err := l.broker.Ends(ctx, stream)
	if err != nil && !errors.Is(err, broker.ErrNoStream) {
		return nil, fmt.Errorf("look for ticks that were sent: %w", err)
	}
	for _, end := range ends {
		if err := l.readBack(ctx, b.began(end), end.Offset, ids); err != nil {
			return nil, fmt.Errorf("look for ticks that were sent: %w", err)
		}
	}
	return ids, nil
}

// readBack gathers the ids of our ticks in one partition.
func (l *ledger) readBack(ctx context.Context, at broker.Position, end int64, ids map[string]bool) error {
	for at.Offset < end {
		next, err := l.broker.Read(ctx, at, readAtOnce, func(e *broker.Incoming) bool {
			if e.Err == nil && e.Type == tidemill.TypeScheduleTick && e.Source == source(l.names) {
				ids[strings.Clone(e.ID)] = true
			}
			return true
		})
		if err != nil {
			return err
		}
		if next == at.Offset {
			return nil
		}
		at.Offset = next
	}
	return nil
}
