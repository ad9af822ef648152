package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/letters"
)

// lane delivers one stream's events.
//
// Who owns what: the reader takes deliveries in; the scribe alone runs
// transactions; the loader reads what is parked and due; the clerk reads dead
// letters that are replayed; the hooks of the consumer make and end shards. They meet in the shards, each behind its lock,
// and wake each other through work and due. See DESIGN.md for who waits for whom.
type lane struct {
	d      *Dispatcher
	stream config.Stream
	group  string

	c  *broker.Consumer
	tx *broker.Transactor

	mu     sync.Mutex
	terms  *terms
	keeps  time.Duration // how long the stream is kept
	event  int           // how large one may be that is parked
	shards map[int32]*shard
	ended  []*slab // of shards that a failed transaction has ended
	fault  error   // why nothing is read any more

	work  chan struct{} // wakes the scribe
	due   chan struct{} // wakes the loader
	asked chan struct{} // wakes the clerk

	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// group names the consumer group that serves a stream's triggers.
func group(stream string) string { return "triggers." + stream }

// openLane joins the stream's group.
func openLane(ctx context.Context, d *Dispatcher, s config.Stream, t *terms) (*lane, error) {
	l := &lane{d: d, stream: s, group: group(s.Name), terms: t, keeps: s.Retention, event: defaultBounds().event, shards: map[int32]*shard{},
		work: make(chan struct{}, 1), due: make(chan struct{}, 1), asked: make(chan struct{}, 1)}
	l.life, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	c, err := d.o.Broker.Consumer(ctx, broker.ConsumerOptions{Group: l.group, Streams: []string{s.Name}, Start: broker.Latest(),
		SessionTimeout: d.o.SessionTimeout, DrainTimeout: drainTimeout, Assigned: l.assigned, Leaving: l.leaving, Gone: l.gone})
	if err != nil {
		l.stop()
		return nil, fmt.Errorf("serve the triggers of stream %s: %w", s.Name, err)
	}
	l.c = c
	if l.tx, err = c.Transactor(broker.ProducerOptions{MaxEvent: maxParked, Compression: broker.LZ4, AsRead: true}); err != nil {
		l.stop()
		return nil, errors.Join(fmt.Errorf("serve the triggers of stream %s: %w", s.Name, err), c.Close(ctx))
	}
	l.running.Go(l.read)
	l.running.Go(l.scribe)
	l.running.Go(l.load)
	l.running.Go(l.heed)
	return l, nil
}

const (
	drainTimeout = 20 * time.Second
	// leaveGrace is how long attempts may go on for a partition that is given
	// up, when everything else is done. Beyond it the new owner makes them again.
	leaveGrace = 2 * time.Second
	// maxParked is what a parked event may have, its history included: a dead
	// letter that a trigger is told of may have to wait as well.
	maxParked = letters.MaxBytes + 1<<20 - 1024
)

// read takes in what the stream brings.
func (l *lane) read() {
	for {
		d, err := l.c.Poll(l.life)
		switch {
		case err == nil:
			l.take(d)
		case l.life.Err() != nil || errors.Is(err, broker.ErrClosed):
			return
		default:
			l.fail(err)
			return
		}
	}
}

func (l *lane) take(d *broker.Delivery) {
	var before *shard
	for s := l.shard(d.Partition); s != before; s = l.shard(d.Partition) { // it may be replaced at any moment
		if s != nil && s.take(d) {
			return
		}
		before = s
	}
	l.giveBack(d)
}

// take tells whether the shard is still the one for the delivery.
func (s *shard) take(d *broker.Delivery) (ours bool) {
	taken := &slab{events: d.Events, next: d.Next(), delivery: d, end: func(at int) { d.Events[at].Done() },
		stale: func() bool { return !d.Current() }, discard: d.Done}
	s.do(func(p *partition, now moment) {
		if ours = !p.closed && d.Current(); ours {
			p.take(taken, now)
		}
	})
	return ours
}

// giveBack ends a delivery whose events come again, to whom they belong. If
// they do not, which cannot be, their end would lose them: then all is read anew.
func (l *lane) giveBack(d *broker.Delivery) {
	if !d.Current() {
		d.Done()
		return
	}
	l.fail(fmt.Errorf("nobody is there to deliver what was read of %s/%d", d.Stream, d.Partition))
}

// fail has the lane closed and opened anew.
func (l *lane) fail(err error) {
	l.mu.Lock()
	l.fault = err
	l.mu.Unlock()
	l.d.fail(l.stream.Name, err)
}

func (l *lane) shard(n int32) *shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shards[n]
}

// all are the shards that there are now.
func (l *lane) all() []*shard {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*shard, 0, len(l.shards))
	for _, s := range l.shards {
		all = append(all, s)
	}
	return all
}

// apply gives all partitions the terms that hold from now on, and how long their
// stream is kept.
func (l *lane) apply(t *terms, keeps time.Duration) {
	l.mu.Lock()
	l.terms, l.keeps = t, keeps
	l.mu.Unlock()
	for _, s := range l.all() {
		s.do(func(p *partition, now moment) {
			if !p.closed {
				p.retain(keeps)
				p.apply(t, now)
			}
		})
	}
}

// close goes in the written order: reading stops, what flies ends or is parked,
// that is committed, the group is left.
func (l *lane) close(ctx context.Context) error {
	err := l.c.Close(ctx) // asks leaving
	l.stop()
	l.running.Wait()
	for _, s := range l.all() {
		release(s.end())
	}
	return errors.Join(err, l.tx.Close(ctx))
}

// release gives back the memory of what was read and is no longer ours to end.
func release(slabs []*slab) {
	for _, s := range slabs {
		if s.discard != nil {
			s.discard()
		}
	}
}

func (l *lane) parked() string { return tidemill.Parked(l.stream.Name) }
