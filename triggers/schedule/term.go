package schedule

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const (
	// fullEvery is the time between marks with the states of all schedules. So a start
	// reads little, and the newest full mark never expires.
	fullEvery = 6 * time.Hour
	// longestSleep bounds the delay after a machine slept or its clock was set: timers
	// notice neither.
	longestSleep = 20 * time.Second
)

// leadership is the time in which a controller is the active one.
type leadership struct {
	k    *Controller
	desk *tickWriter

	roster *keyLists
	states map[string]state
	lost   bool
	sent   map[string]bool
	full   time.Time // time of the last full mark
	behind bool      // whether the log says that this machine's clock is behind the marks
}

// runLeadership runs one term and returns the reason why it has ended.
func (k *Controller) runLeadership(ctx context.Context) error {
	d, err := k.open(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	t := &leadership{k: k, desk: d, roster: newKeyLists(k)}
	ctx, end := context.WithCancel(ctx)
	defer t.roster.asking.Wait()
	defer end()
	if err := t.begin(ctx); err != nil {
		return err
	}
	k.become(active, nil)
	for {
		changed := k.changes() // called before the state is read, so no change is missed
		next, err := t.work(ctx)
		if err != nil {
			return err
		}
		if err := k.sleep(ctx, next, changed, t.roster.answered); err != nil {
			return err
		}
	}
}

// begin takes over from the previous controller. If transactions can be torn, the ticks
// on the stream may differ from those of the mark. Missing ticks are sent again; ticks
// without a mark are not.
func (t *leadership) begin(ctx context.Context) error {
	book, err := t.desk.read(ctx)
	if err != nil {
		return err
	}
	for _, gap := range book.gaps {
		t.k.log.Warn("controller: a mark of the schedules is unreadable; it is skipped", "reason", gap)
	}
	if t.sent, err = t.desk.seen(ctx, book); err != nil {
		return err
	}
	t.states, t.lost = book.states, book.maybeLost()
	if t.states == nil {
		t.states = map[string]state{}
	}
	var torn []tick
	for _, tick := range book.ticks() {
		if !t.sent[tick.id()] {
			torn = append(torn, tick)
		}
	}
	if len(torn) > 0 {
		t.k.log.Warn("controller: a transaction was torn; its missing ticks are sent again", "events", len(torn))
	}
	return t.write(ctx, t.k.timetable().stream, plan{ticks: torn}, t.k.now(), true)
}

// work sends all due ticks and returns the time of the next ones.
func (t *leadership) work(ctx context.Context) (next time.Time, err error) {
	for {
		now := t.k.now()
		t.checkClock(now)
		table := t.k.timetable()
		p := decide(inputs{table: table.entries, states: t.states, lost: t.lost, rolls: t.roster.current(), paused: t.k.opt.Paused, sent: t.sent, now: now})
		full := now.Sub(t.full) >= fullEvery
		if full || len(p.ticks) > 0 || len(p.states) > 0 || len(p.gone) > 0 {
			if err := t.write(ctx, table.stream, p, now, full); err != nil {
				return time.Time{}, err
			}
		}
		t.k.report(p, now)
		p.awake(t.roster.see(ctx, &p, now))
		if !p.more {
			t.lost = false // schedules that appear later are new
			return p.wake, nil
		}
	}
}

// checkClock logs once if the marks are later than this machine's clock: another clock was ahead, or this one was
// set back. Ticks up to the marks count as handled, so a schedule does not tick before.
func (t *leadership) checkClock(now time.Time) {
	ahead := now
	for _, st := range t.states {
		ahead = later(ahead, st.Through)
	}
	was := t.behind
	if t.behind = ahead.Sub(now) >= tooLate; t.behind && !was {
		t.k.log.Warn("controller: this machine's clock shows an earlier time than the marks; schedules do not tick until then",
			"reason", "ticks up to "+stamp(ahead)+" are handled already",
			"next", "set the clock; or remove the schedules from the file and add them again, and they begin now")
	}
}

// write writes the plan's ticks and marks in one transaction.
func (t *leadership) write(ctx context.Context, stream string, p plan, now time.Time, full bool) error {
	after := maps.Clone(t.states)
	maps.Copy(after, p.states)
	for _, name := range p.gone {
		delete(after, name)
	}
	m := mark{At: now, States: p.states, Gone: p.gone}
	if full {
		m = mark{At: now, States: after, Full: true}
	}
	if err := t.desk.write(ctx, stream, p.ticks, m); err != nil {
		return err
	}
	t.states = after
	if full {
		t.full = now
	}
	return nil
}

// tickWriter reads and writes an active controller's state on Kafka, or in memory in the
// tests with virtual time.
type tickWriter struct {
	read func(context.Context) (*Book, error)
	// seen returns the ids of the ticks that were sent since the book's newest transaction began.
	seen func(context.Context, *Book) (map[string]bool, error)
	// write sends ticks and their mark, both or neither.
	write func(ctx context.Context, stream string, ticks []tick, m mark) error
	close func()
}

// markLog implements tickWriter on Kafka.
type markLog struct {
	broker *broker.Broker
	names  tidemill.Names
	verify bool
	name   *broker.Exclusive
}

// writeWithin is longer than the time for which Kafka keeps a transaction open.
const writeWithin = 20 * time.Second

// openTickWriter takes the controller's transactional id. From then on no other
// controller can commit, so a later read stays valid.
func openTickWriter(ctx context.Context, o *Options) (*tickWriter, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	name, err := o.Broker.Exclusive(ctx, reader, broker.ProducerOptions{})
	if err != nil {
		return nil, fmt.Errorf("take the clock over: %w", err)
	}
	l := &markLog{broker: o.Broker, names: o.Names, verify: o.Verify, name: name}
	return &tickWriter{
		read:  func(ctx context.Context) (*Book, error) { return Read(ctx, l.broker) },
		seen:  l.seen,
		write: l.write,
		close: l.close,
	}, nil
}

// close does not wait, because every transaction has ended or was given up.
func (l *markLog) close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.name.Close(ctx)
}

// write first reads the end of the ticks' stream, for a successor that checks whether the
// ticks were written.
func (l *markLog) write(ctx context.Context, stream string, ticks []tick, m mark) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	m.Turn, m.Sent = rand.Text(), toBatches(ticks)
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
		// The offset is known only now, so this needs a second transaction.
		err = l.name.Do(ctx, func(tx *broker.ExclusiveTx) error { tx.Mark(reader, began); return nil })
	}
	if err != nil {
		return fmt.Errorf("send %d ticks and mark them: %w", len(ticks), err)
	}
	return nil
}

// readAtOnce is the size of one read of a stream.
const readAtOnce = 4 << 20

// seen reads the ticks' stream from its end at the start of the newest transaction.
// Apache Kafka's transactions are visible completely or not at all, so there is nothing
// to check; those of the embedded Kafka may be torn by a kill.
func (l *markLog) seen(ctx context.Context, b *Book) (map[string]bool, error) {
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
		if err := l.readBack(ctx, b.beginOf(end), end.Offset, ids); err != nil {
			return nil, fmt.Errorf("look for ticks that were sent: %w", err)
		}
	}
	return ids, nil
}

// readBack collects the ids of our ticks in one partition.
func (l *markLog) readBack(ctx context.Context, at broker.Position, end int64, ids map[string]bool) error {
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
