package deliver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
)

// pipeline delivers one stream's events.
//
// Its goroutines are the reader, which accepts deliveries; the commit loop, which is the
// only one to run transactions; the load loop, which reads parked records that are due;
// and the replay loop, which reads dead letters to be replayed. The consumer's hooks
// create and end assignments. The goroutines share the assignments, each of which has a lock, and
// signal each other through channels. DESIGN.md lists which one waits for which.
type pipeline struct {
	d      *Dispatcher
	stream config.Stream
	group  string

	c  *broker.Consumer
	tx *broker.Transactor

	mu          sync.Mutex
	settings    *triggerSettings
	retention   time.Duration // retention of the stream
	maxEvent    int           // size limit of an event to be parked
	assignments map[int32]*assignment
	partitions  int            // number of the stream's partitions in Kafka; 0 if it is not known yet
	returned    []*sourceBatch // batches of assignments that a failed transaction has ended
	fault       error          // reason why nothing is read any more
	opened      time.Time      // time at which the pipeline was opened
	searched    time.Time      // time of the last search of the other partitions; the dispatcher's lock guards it

	work         chan struct{} // wakes the commit loop
	due          chan struct{} // wakes the load loop
	commandsRead chan struct{} // wakes the replay loop
	joined       chan struct{} // closed when c is set; parked events may be delivered before

	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// openPipeline joins the stream's group.
func openPipeline(ctx context.Context, d *Dispatcher, s config.Stream, t *triggerSettings) (*pipeline, error) {
	l := &pipeline{d: d, opened: time.Now(), stream: s, group: tidemill.TriggersGroup(s.Name), settings: t, retention: s.Retention, maxEvent: defaultBounds().event, assignments: map[int32]*assignment{},
		work: make(chan struct{}, 1), due: make(chan struct{}, 1), commandsRead: make(chan struct{}, 1), joined: make(chan struct{})}
	l.life, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	c, err := d.o.Broker.Consumer(ctx, broker.ConsumerOptions{Group: l.group, Streams: []string{s.Name}, Companions: []string{tidemill.Parked(s.Name)}, Start: broker.Latest(), MaxBytes: maxRead,
		SessionTimeout: d.o.SessionTimeout, DrainTimeout: drainTimeout, Assigned: l.assigned, Leaving: l.leaving, Gone: l.endLost})
	if err != nil {
		l.stop()
		return nil, fmt.Errorf("serve the triggers of stream %s: %w", s.Name, err)
	}
	l.c = c
	close(l.joined)
	if l.tx, err = c.Transactor(broker.ProducerOptions{MaxEvent: maxParked, Compression: broker.LZ4, AsRead: true}); err != nil {
		l.stop()
		return nil, errors.Join(fmt.Errorf("serve the triggers of stream %s: %w", s.Name, err), c.Close(ctx))
	}
	l.running.Go(l.read)
	l.running.Go(l.commitLoop)
	l.running.Go(l.loadLoop)
	l.running.Go(l.replayLoop)
	l.running.Go(l.trimLoop)
	return l, nil
}

const (
	// maxRead bounds the fetched bytes whose events have not ended. Small events take seven
	// times as much memory with their items, so these take at most about 100 MiB.
	maxRead      = 16 << 20
	drainTimeout = 20 * time.Second
	// leaveGrace is how long attempts may continue for a partition that is given up. After
	// that the new owner repeats them.
	leaveGrace = 2 * time.Second
	// maxParked is the size limit of a parked event with its history. It has room for a
	// dead letter, because a trigger on dead letters may have to park one.
	maxParked = deadletters.MaxBytes + 1<<20 - 1024
)

// read accepts the stream's deliveries.
func (pl *pipeline) read() {
	for {
		d, err := pl.c.Poll(pl.life)
		switch {
		case err == nil:
			pl.take(d)
		case pl.life.Err() != nil || errors.Is(err, broker.ErrClosed):
			return
		default:
			pl.fail(err)
			return
		}
	}
}

func (pl *pipeline) take(d *broker.Delivery) {
	var before *assignment
	for s := pl.assignment(d.Partition); s != before; s = pl.assignment(d.Partition) { // the assignment may be replaced at any moment
		if s != nil && s.isCurrent(d) {
			return
		}
		before = s
	}
	pl.giveBack(d)
}

// isCurrent reports whether the delivery still belongs to this assignment.
func (as *assignment) isCurrent(d *broker.Delivery) (ours bool) {
	taken := &sourceBatch{events: d.Events, next: d.Next(), delivery: d, end: func(at int) { d.Events[at].Done() },
		stale: func() bool { return !d.Current() }, discard: d.Done}
	as.apply(func(p *partition, now millis) {
		if ours = !p.closed && d.Current(); ours {
			p.acceptBatch(taken, now)
		}
	})
	return ours
}

// giveBack ends a delivery whose events come again to another owner. If they would not
// come again, ending it would lose them; then the pipeline is reopened.
func (pl *pipeline) giveBack(d *broker.Delivery) {
	if !d.Current() {
		d.Done()
		return
	}
	pl.fail(fmt.Errorf("no assignment accepts the events read from %s/%d", d.Stream, d.Partition))
}

// fail makes the pipeline close and open again.
func (pl *pipeline) fail(err error) {
	pl.mu.Lock()
	pl.fault = err
	pl.mu.Unlock()
	pl.d.fail(pl.stream.Name, err)
}

func (pl *pipeline) assignment(n int32) *assignment {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return pl.assignments[n]
}

// assignmentsNow returns the present assignments.
func (pl *pipeline) assignmentsNow() []*assignment {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	all := make([]*assignment, 0, len(pl.assignments))
	for _, s := range pl.assignments {
		all = append(all, s)
	}
	return all
}

// partitionsNow returns the number of the stream's partitions. Kafka may have another number than the config.
func (pl *pipeline) partitionsNow() int {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	return cmp.Or(pl.partitions, pl.stream.Partitions)
}

// apply gives all partitions new settings and the retention of their stream.
func (pl *pipeline) apply(t *triggerSettings, keeps time.Duration) {
	pl.mu.Lock()
	pl.settings, pl.retention = t, keeps
	pl.mu.Unlock()
	for _, s := range pl.assignmentsNow() {
		s.apply(func(p *partition, now millis) {
			if !p.closed {
				p.retain(keeps)
				p.apply(t, now)
			}
		})
	}
}

// close stops reading, lets attempts end or parks their items, commits, and leaves the group.
func (pl *pipeline) close(ctx context.Context) error {
	err := pl.c.Close(ctx) // calls leaving
	pl.stop()
	pl.running.Wait()
	for _, s := range pl.assignmentsNow() {
		release(s.stopDelivery())
	}
	return errors.Join(err, pl.tx.Close(ctx))
}

// release frees the memory of batches that another owner ends.
func release(slabs []*sourceBatch) {
	for _, s := range slabs {
		if s.discard != nil {
			s.discard()
		}
	}
}

func (pl *pipeline) parked() string { return tidemill.Parked(pl.stream.Name) }

// assignment is a partition for as long as it is read here without interruption: its
// state and a lock. A partition that is read again gets a new assignment; results for the
// old one find it closed.
type assignment struct {
	pipeline *pipeline
	mu       sync.Mutex
	p        *partition

	ctx   context.Context // context of its attempts
	stop  context.CancelFunc
	quiet chan struct{} // closed when it is leaving and nothing is left to do
	send  func(*item)
	paces map[int64]*pace // paces of replay commands, by offset; used by the replay loop only
}

func newAssignment(l *pipeline, p *partition) *assignment {
	s := &assignment{pipeline: l, p: p, quiet: make(chan struct{}), send: l.d.send, paces: map[int64]*pace{}}
	s.ctx, s.stop = context.WithCancel(l.life)
	p.home = s
	return s
}

// apply changes the partition and passes its results on.
func (as *assignment) apply(change func(p *partition, now millis)) {
	as.mu.Lock()
	change(as.p, as.pipeline.d.clock.now())
	out := as.p.handOut()
	busy, stirred := as.p.busy() || as.p.wanted != nil || len(as.p.kept) > 0, as.p.stirred
	as.p.stirred = false
	if as.p.leaving && !as.p.busy() && !isClosed(as.quiet) {
		close(as.quiet)
	}
	as.mu.Unlock()
	for _, i := range out {
		as.send(i)
	}
	if busy {
		notify(as.pipeline.work)
	}
	if stirred {
		notify(as.pipeline.due)
	}
}

// stopDelivery makes attempts under way obsolete and returns the batches that have not ended.
func (as *assignment) stopDelivery() []*sourceBatch {
	as.stop()
	as.mu.Lock()
	defer as.mu.Unlock()
	as.p.markClosed()
	left := append(as.p.window, as.p.backlog...)
	as.p.window, as.p.backlog, as.p.out, as.p.kept = nil, nil, nil, nil
	if !isClosed(as.quiet) {
		close(as.quiet)
	}
	return left
}

// notify sends to a channel of capacity one, unless it is full.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// parkedPartitions returns the number of partitions of the parked stream. A stream that
// was grown by hand has more, until its parked stream is grown too. Until then the new
// partitions wait, because none of their events could be parked.
func (pl *pipeline) parkedPartitions(ctx context.Context) (int32, error) {
	all, err := pl.d.o.Broker.Ends(ctx, pl.parked())
	if errors.Is(err, broker.ErrNoStream) {
		return 0, nil
	}
	return int32(len(all)), err
}

// marksOf returns the marks of partitions that have a parked partition; none for the others.
func (pl *pipeline) marksOf(ctx context.Context, at []broker.Position, companions int32) ([]broker.Position, error) {
	marks := make([]broker.Position, len(at))
	var ask []broker.Position
	for n, p := range at {
		marks[n] = broker.Position{Stream: pl.parked(), Partition: p.Partition, Offset: none}
		if p.Partition < companions {
			ask = append(ask, marks[n])
		}
	}
	if len(ask) == 0 {
		return marks, nil
	}
	found, err := pl.d.o.Broker.Committed(ctx, pl.group, ask)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		for n := range marks {
			if marks[n].Partition == f.Partition {
				marks[n] = f
			}
		}
	}
	return marks, nil
}

// awaitParkedPartition makes a partition without a parked partition wait.
func (pl *pipeline) awaitParkedPartition(p *partition) {
	p.missing = true
	pl.d.o.Logger.Warn("dispatcher: events cannot be parked; the partition waits", "stream", pl.stream.Name, "partition", p.number,
		"reason", fmt.Sprintf("stream %s has no such partition", pl.parked()),
		"next", fmt.Sprintf("give %s the partitions of %s: start a gateway, or add them to its topic by hand", pl.parked(), pl.stream.Name))
}

// checkParkedPartitions resumes partitions whose parked partition exists now. That
// partition is empty, because only the partition's owner writes there.
func (pl *pipeline) checkParkedPartitions(ctx context.Context) {
	if len(pl.unparked()) == 0 {
		return
	}
	have, err := pl.parkedPartitions(ctx)
	if err != nil {
		pl.d.o.Logger.Warn("dispatcher: checking the parked stream failed", "stream", pl.stream.Name, "reason", err)
		return
	}
	for _, s := range pl.assignmentsNow() {
		if s.p.number >= have {
			continue
		}
		s.apply(func(p *partition, now millis) {
			if p.missing {
				p.missing = false
				p.release(now)
			}
		})
		notify(pl.work)
	}
}

// unparked returns the partitions that wait for their parked partition.
func (pl *pipeline) unparked() (all []int32) {
	for _, s := range pl.assignmentsNow() {
		s.mu.Lock()
		if s.p.missing {
			all = append(all, s.p.number)
		}
		s.mu.Unlock()
	}
	return all
}
