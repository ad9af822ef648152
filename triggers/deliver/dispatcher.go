// Package deliver sends the events that triggers want to their subscribers: in
// order per key, tried again as the policy says, parked where they must wait,
// and dead-lettered in the end. See DESIGN.md.
package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/acts"
	"tidemill.dev/triggers/letters"
)

// Dispatcher delivers events to triggers, together with all other dispatchers
// of the install: each has some partitions of every stream that a trigger reads.
type Dispatcher struct {
	o     Options
	names tidemill.Names

	acts       *acts.Follower
	letters    *undertaking
	replies    *replier
	senders    atomic.Pointer[map[string]*sender]
	undertaker *sender // of items whose trigger is gone
	counts     counts
	clock      watch

	mu     sync.Mutex
	plans  map[string]*plan
	config *config.Config
	lanes  map[string]*lane
	faults map[string]error // why streams are not served
	heard  int64            // of the acts, whether they need lanes that there are not
	ranges ranges
	mend   chan struct{}
	absent absent

	stop    context.CancelFunc
	running sync.WaitGroup
	working sync.WaitGroup // senders' workers
}

// Open begins to deliver. Close the dispatcher.
func Open(ctx context.Context, o Options) (*Dispatcher, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	names, err := o.Config.Names()
	if err != nil {
		return nil, fmt.Errorf("open the dispatcher: %w", err)
	}
	d := &Dispatcher{o: o, names: names, lanes: map[string]*lane{}, faults: map[string]error{}, mend: make(chan struct{}, 1), ranges: newRanges(), absent: newAbsent()}
	d.senders.Store(&map[string]*sender{})
	d.undertaker = newSender(d, "", &target{trigger: config.Trigger{Delivery: config.Delivery{Concurrency: 4, Rate: 500}}})
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open the dispatcher: %w", err), d.Close(ctx))
	}
	return d, nil
}

func (d *Dispatcher) open(ctx context.Context) error {
	written, err := d.o.Broker.Producer(broker.ProducerOptions{MaxEvent: letters.MaxBytes, Compression: broker.Zstd, AsRead: true})
	if err != nil {
		return err
	}
	d.letters = &undertaking{p: written, names: d.names, log: d.o.Logger}
	replies, err := d.o.Broker.Producer(broker.ProducerOptions{})
	if err != nil {
		return err
	}
	d.replies = &replier{p: replies}
	if d.acts, err = acts.Follow(ctx, d.o.Broker, d.o.Logger); err != nil {
		return err
	}
	if err := d.register(); err != nil {
		return err
	}
	if err := d.Apply(ctx, d.o.Config); err != nil {
		return err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.running.Go(func() { d.run(life) })
	d.running.Go(func() { d.expect(life) })
	return nil
}

// Apply makes a config the one that holds, for events to come and for all that
// wait. If it cannot, the one before goes on.
func (d *Dispatcher) Apply(ctx context.Context, c *config.Config) error {
	plans, err := compilePlans(c)
	if err != nil {
		return fmt.Errorf("apply the config's triggers: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	targets, err := d.targets(c)
	if err != nil {
		return fmt.Errorf("apply the config's triggers: %w", err)
	}
	first := d.config == nil
	d.config, d.plans = c, plans
	d.replies.config.Store(c)
	dismissed := d.aim(targets)
	if first {
		d.heard = d.acts.Now().Next() // what was asked before is found with what is left
		d.findLeft(ctx)
	}
	for stream, l := range d.lanes {
		if d.plans[stream] == nil {
			d.plans[stream] = deserted()
		}
		l.apply(d.terms(stream), d.keeps(l))
	}
	d.ranges.changed = time.Now()
	d.applyRanges()
	d.dismiss(dismissed) // what waits with them finds its trigger gone
	d.reconcile(ctx)
	return nil
}

// terms are what holds on a stream now. Called with the lock held.
func (d *Dispatcher) terms(stream string) *terms {
	now := d.acts.Now()
	p := d.plans[stream]
	if p == nil {
		p = deserted()
	}
	return &terms{plan: p, triggers: byName(d.config), paused: func(trigger string) bool { return now.TriggerPaused(trigger) || d.absent.has(trigger) }}
}

// keeps is how long a lane's stream is kept, by the config of now. Called with the
// lock held.
func (d *Dispatcher) keeps(l *lane) time.Duration {
	if s, known := d.config.Stream(l.stream.Name); known {
		return s.Retention
	}
	return l.stream.Retention
}

// findLeft finds streams that no trigger reads any more, and where something
// may still be parked: it must not be forgotten.
func (d *Dispatcher) findLeft(ctx context.Context) {
	for _, s := range d.config.Streams {
		if d.plans[s.Name] != nil {
			continue
		}
		left, err := d.left(ctx, s)
		if err != nil {
			d.o.Logger.Warn("cannot tell whether anything is parked", "stream", s.Name, "reason", err)
		}
		if left {
			d.plans[s.Name] = deserted()
		}
	}
}

// left tells whether a stream's triggers ever parked anything.
func (d *Dispatcher) left(ctx context.Context, s config.Stream) (bool, error) {
	of := make([]broker.Position, s.Partitions)
	for n := range of {
		of[n] = broker.Position{Stream: tidemill.Parked(s.Name), Partition: int32(n)}
	}
	marks, err := d.o.Broker.Committed(ctx, group(s.Name), of)
	for _, m := range marks {
		if m.Offset != none {
			return true, nil
		}
	}
	return false, err
}

// reconcile opens the lanes that are wanted and not there, mends those that
// have failed, and ends those that nobody needs. Called with the lock held.
func (d *Dispatcher) reconcile(ctx context.Context) {
	for stream := range d.plans {
		l := d.lanes[stream]
		if l != nil && l.failed() {
			d.drop(ctx, l)
			l = nil
		}
		if l == nil {
			d.openLane(ctx, stream)
		}
	}
	for stream, l := range d.lanes {
		l.seek(ctx)
		if len(d.plans[stream].triggers) == 0 && l.empty() {
			d.drop(ctx, l)
			delete(d.plans, stream)
		}
	}
	d.share()
	d.replayRanges(ctx)
}

func (d *Dispatcher) openLane(ctx context.Context, stream string) {
	s, known := d.config.Stream(stream)
	if !known {
		d.faults[stream] = fmt.Errorf("stream %s is not in the config", stream)
		return
	}
	l, err := openLane(ctx, d, s, d.terms(stream))
	if err != nil {
		d.faults[stream] = err
		d.o.Logger.Warn("a stream's triggers cannot be served yet", "stream", stream, "reason", err)
		return
	}
	delete(d.faults, stream)
	d.lanes[stream] = l
}

// drop closes a lane. Called with the lock held.
func (d *Dispatcher) drop(ctx context.Context, l *lane) {
	delete(d.lanes, l.stream.Name)
	ctx, cancel := context.WithTimeout(ctx, dropWithin)
	defer cancel()
	if err := l.close(ctx); err != nil {
		d.o.Logger.Warn("a stream's triggers were left untidily", "stream", l.stream.Name, "reason", err)
	}
}

const (
	mendEvery = time.Second
	// dropWithin is for how long a lane that has failed may finish what it began.
	// Everything else of the dispatcher waits meanwhile.
	dropWithin = 4 * time.Second
)

// run follows what people ask for, and mends what has failed.
func (d *Dispatcher) run(ctx context.Context) {
	t := time.NewTicker(mendEvery)
	defer t.Stop()
	var known *tidemill.Acts
	for {
		changed := d.acts.Changed() // before they are looked at, lest one that comes meanwhile be missed
		d.mu.Lock()
		if now := d.acts.Now(); now != known {
			known = now
			d.heed(ctx)
		}
		if ctx.Err() == nil {
			d.reconcile(ctx)
		}
		d.mu.Unlock()
		select {
		case <-changed:
		case <-d.mend:
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// heed has what people ask for hold everywhere. Called with the lock held.
func (d *Dispatcher) heed(ctx context.Context) {
	d.findAsked(ctx)
	d.applyRanges()
	for _, l := range d.lanes {
		l.apply(d.terms(l.stream.Name), d.keeps(l))
	}
}

// fail says that a lane reads no more.
func (d *Dispatcher) fail(stream string, err error) {
	d.o.Logger.Error("a stream's triggers are served no more; it is tried anew", "stream", stream, "reason", err)
	poke(d.mend)
}

// Close stops in order: nothing more is read, what is under way ends or is
// parked, that is committed, the groups are left, and all connections close.
func (d *Dispatcher) Close(ctx context.Context) error {
	if d.stop != nil {
		d.stop()
		d.running.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.ranges.running {
		d.leaveRange(r)
	}
	errs := d.closeLanes(ctx)
	d.dismiss(d.aim(nil))
	d.undertaker.end()
	d.working.Wait()
	if d.replies != nil {
		errs = append(errs, d.replies.p.Close(ctx))
	}
	if d.letters != nil {
		errs = append(errs, d.letters.p.Close(ctx))
	}
	if d.acts != nil {
		errs = append(errs, d.acts.Close(ctx))
	}
	d.unregister()
	return errors.Join(errs...)
}

func (d *Dispatcher) closeLanes(ctx context.Context) []error {
	all := d.lanes
	d.lanes = map[string]*lane{}
	errs := make(chan error, len(all))
	for _, l := range all {
		go func() { errs <- l.close(ctx) }()
	}
	var failed []error
	for range all {
		failed = append(failed, <-errs)
	}
	return failed
}
