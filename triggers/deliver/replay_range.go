package deliver

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// rangeReplay sends a past range of a stream's events to one trigger, together
// with the other dispatchers: they share its partitions in a group of its own,
// whose offsets say how far it has come.
//
// It delivers with the same partitions as a lane, only that these never park:
// what fails rests in memory, and the reading waits for it. Nobody else's events
// wait behind it.
type rangeReplay struct {
	d   *Dispatcher
	act tidemill.Replay
	of  map[address]tidemill.Range
	c   *broker.Consumer

	missing int64 // records of streams that are not there
	told    bool  // that it has ended; run's

	mu     sync.Mutex
	lanes  map[string]*lane // of each stream; they hold terms and shards, and run nothing
	shards map[address]*shard
	ours   map[address]bool // partitions that we have, dealt with or not
	queue  fifo             // to be sent, when there is room
	pace   *bucket

	wake    chan struct{}
	closing atomic.Bool
	fault   atomic.Bool // nothing is read any more
	left    chan struct{}
	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// address is a partition of a stream.
type address struct {
	stream string
	number int32
}

func addressOf(at broker.Position) address { return address{at.Stream, at.Partition} }

// replayGroup is the group of a trigger's replay.
func replayGroup(act string) string { return "replay." + act }

// newRangeReplay makes a replay that does nothing yet.
func newRangeReplay(d *Dispatcher, act tidemill.Replay, terms map[string]*terms) *rangeReplay {
	r := &rangeReplay{d: d, act: act, of: map[address]tidemill.Range{}, lanes: map[string]*lane{}, shards: map[address]*shard{}, ours: map[address]bool{},
		pace: newBucket(0), wake: make(chan struct{}, 1), left: make(chan struct{})}
	r.act.Streams = map[string][]tidemill.Range{}
	r.life, r.stop = context.WithCancel(context.Background())
	for stream, all := range act.Streams {
		if t := terms[stream]; t != nil {
			r.act.Streams[stream] = all
			r.lanes[stream] = &lane{d: r.d, stream: config.Stream{Name: stream}, group: replayGroup(r.act.ID), terms: t, work: r.wake, due: r.wake, life: r.life}
		}
		for _, one := range all {
			switch {
			case terms[stream] == nil:
				r.missing += max(one.To-one.From, 0)
			case one.From < one.To:
				r.of[address{stream, one.Partition}] = one
			}
		}
	}
	return r
}

const (
	rangeWindow = 1024    // events of a partition that are read and not over
	rangeBytes  = 8 << 20 // of them
	rangeAgain  = time.Second
)

// start joins the group and delivers until the replay is closed.
func (r *rangeReplay) start(ctx context.Context) error {
	c, err := r.d.o.Broker.Consumer(ctx, broker.ConsumerOptions{Group: replayGroup(r.act.ID), Streams: slices.Sorted(maps.Keys(r.lanes)), Start: broker.Earliest(),
		SessionTimeout: r.d.o.SessionTimeout, DrainTimeout: leaveGrace, Assigned: r.assigned, Gone: r.gone})
	if err != nil {
		return err
	}
	r.c = c
	r.running.Go(r.read)
	r.running.Go(r.run)
	return nil
}

// apply gives the replay the terms that hold from now on.
func (r *rangeReplay) apply(terms map[string]*terms) {
	r.mu.Lock()
	for stream, l := range r.lanes {
		if t := terms[stream]; t != nil {
			l.terms = t
		}
	}
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	for at, s := range all {
		if t := terms[at.stream]; t != nil {
			s.do(func(p *partition, now moment) { p.applyPast(t, now) })
		}
	}
	poke(r.wake)
}

// halt lets nothing more begin. What waits with the sender must not become dead
// letters when the sender ends, for others go on with it.
func (r *rangeReplay) halt() {
	r.closing.Store(true)
	r.mu.Lock()
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	for _, s := range all {
		s.do(func(p *partition, _ moment) { p.leaving = true })
	}
}

// close leaves the group. What flies may end for a moment; the rest is for who
// goes on with it.
func (r *rangeReplay) close(ctx context.Context) error {
	var err error
	if r.c != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveGrace)
		defer cancel()
		if err = r.c.Close(ctx); errors.Is(err, context.DeadlineExceeded) {
			err = nil // what has ended is committed all the same
		}
	}
	r.stop()
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.shards {
		s.end()
	}
	return err
}

// run sends what is read, wakes what rests, and notices the end.
func (r *rangeReplay) run() {
	t := time.NewTimer(0)
	defer t.Stop()
	look := time.Now()
	for r.life.Err() == nil {
		next := min(r.look(), r.pump())
		if now := time.Now(); !now.Before(look) {
			look = now.Add(rangeAgain)
			r.finish()
		}
		t.Reset(max(min(next, time.Until(look)), time.Millisecond))
		select {
		case <-t.C:
		case <-r.wake:
		case <-r.life.Done():
		}
	}
}

// look wakes what has rested enough, and tells when more has.
func (r *rangeReplay) look() time.Duration {
	r.mu.Lock()
	all := maps.Clone(r.shards)
	r.mu.Unlock()
	wait := rest
	for at, s := range all {
		s.do(func(p *partition, now moment) {
			p.wake(now)
			if len(p.resting) > 0 {
				wait = p.resting[0].due.in(now, wait)
			}
			if crowded := p.crowded(); crowded != p.paused {
				if p.paused = crowded; crowded {
					r.c.Pause(at.stream, at.number)
				} else {
					r.c.Resume(at.stream, at.number)
				}
			}
		})
	}
	return wait
}

// enqueue takes what a partition wants sent.
func (r *rangeReplay) enqueue(i *item) {
	r.mu.Lock()
	r.queue.push(i)
	r.mu.Unlock()
	poke(r.wake)
}

// pump gives the trigger's sender as much as it has room for and the replay's
// rate allows, and tells when it allows more. An event that is tried again was
// counted when it was tried first.
func (r *rangeReplay) pump() time.Duration {
	s := (*r.d.senders.Load())[r.act.Trigger]
	if s == nil || r.closing.Load() || r.d.acts.Now().TriggerPaused(r.act.Trigger) || r.d.absent.has(r.act.Trigger) {
		return rest // a change of any wakes
	}
	for {
		i, wait := r.pop(s)
		if i == nil {
			return wait
		}
		if !s.offer(i) {
			r.enqueue(i)
			return rangeAgain // the trigger is going
		}
	}
}

// pop takes the next item that may be sent now.
func (r *rangeReplay) pop(s *sender) (*item, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.n == 0 {
		return nil, rest
	}
	if !s.room(r.wake) {
		return nil, rest // it wakes us
	}
	if r.queue.ring[r.queue.head].tries == 0 {
		if ok, next := r.pace.take(time.Now()); !ok {
			return nil, time.Until(next)
		}
	}
	return r.queue.pop(), 0
}

// read takes in what lies in the range.
func (r *rangeReplay) read() {
	for {
		d, err := r.c.Poll(r.life)
		if err != nil {
			if r.life.Err() == nil && !errors.Is(err, broker.ErrClosed) {
				r.d.o.Logger.Error("a replay is not read any more; it is tried anew", "trigger", r.act.Trigger, "event", r.act.ID, "reason", err)
				r.fault.Store(true)
				poke(r.d.mend)
			}
			return
		}
		r.take(d)
	}
}
