package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// apply takes what is new and begins to drain what is no longer ours.
func (m *member) apply(ctx context.Context, mine []wire.TopicPartition) error {
	var added []wire.TopicPartition
	var parting []*inPartition
	now := time.Now()
	m.c.drop(nil) // what a transaction has given up, or it would seem to be ours still
	m.c.mu.Lock()
	for tp, p := range m.c.parts {
		keep := slices.Contains(mine, tp)
		p.mu.Lock()
		switch {
		case keep && p.parting == remaining:
			p.keep()
		case keep: // given back too late: it goes all the way, and is taken anew in the next generation
		default:
			p.drain(now.Add(m.c.opt.DrainTimeout))
			if p.part() {
				parting = append(parting, p)
			}
		}
		p.mu.Unlock()
	}
	for _, tp := range mine {
		if m.c.parts[tp] == nil {
			added = append(added, tp)
		}
	}
	m.c.mu.Unlock()
	m.farewell(m.tenure, parting)
	m.c.counts.assigned.Store(int64(len(mine)))
	m.c.counts.rebalances.Add(1)
	m.c.b.log.Info("assigned", "group", m.group, "generation", m.generation, "partitions", len(mine), "new", len(added))
	return m.begin(ctx, added)
}

// begin reads partitions on from where their group has got to.
func (m *member) begin(ctx context.Context, added []wire.TopicPartition) error {
	if len(added) == 0 {
		return nil
	}
	places, err := m.places(ctx, added)
	if err != nil {
		return err
	}
	return m.c.take(ctx, places)
}

// places are where the group has got to. They are not waited for without end:
// while they are, nothing is committed, and a stream may be gone for good, which
// the next generation will know.
func (m *member) places(ctx context.Context, added []wire.TopicPartition) (map[wire.TopicPartition]origin, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	known, err := m.c.b.committedOffsets(ctx, m.group, added)
	if err != nil {
		return nil, err
	}
	places := map[wire.TopicPartition]origin{}
	var fresh, grown []wire.TopicPartition
	for _, tp := range added {
		if o, ok := known[tp]; ok && o.Offset >= 0 {
			places[tp] = origin{o.Offset, o.Metadata}
		} else if m.began[tp.Topic] {
			grown = append(grown, tp)
		} else {
			fresh = append(fresh, tp)
		}
	}
	err = m.start(ctx, places, fresh, m.c.opt.Start)
	if err == nil {
		err = m.start(ctx, places, grown, Earliest())
	}
	return places, err
}

// start adds where partitions begin that the group has no offset for.
func (m *member) start(ctx context.Context, places map[wire.TopicPartition]origin, parts []wire.TopicPartition, from Start) error {
	if len(parts) == 0 {
		return nil
	}
	starts, err := m.c.b.startOffsets(ctx, parts, from)
	if err == nil {
		err = m.settleDown(ctx, starts)
	}
	maps.Copy(places, starts)
	return err
}

// settleDown commits where a group begins before it reads on from there. If
// the first reader of a partition died before its first commit, its successor
// would look for the beginning anew, and behind the newest event that is
// elsewhere by then.
func (m *member) settleDown(ctx context.Context, starts map[wire.TopicPartition]origin) error {
	topics := map[string][]kafka.OffsetCommit{}
	for tp, from := range starts {
		topics[tp.Topic] = append(topics[tp.Topic], kafka.OffsetCommit{Partition: int(tp.Partition), Offset: from.offset})
	}
	refused, err := m.commitOffsets(ctx, topics)
	for tp, e := range refused {
		err = errors.Join(err, named("commit the start of", fmt.Sprintf("%s/%d", tp.Topic, tp.Partition), e))
	}
	return rejoin(asMembership(err))
}

// leave asks the member's goroutine to drain, commit and leave, and waits.
func (m *member) leave(ctx context.Context) error {
	m.once.Do(func() {
		m.until = ctx
		close(m.leavy)
	})
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("leave group %s: %w", m.group, context.Cause(ctx))
	}
}

// drained gives up the partitions that were taken away, once everything they
// began has ended and is committed or their time is up. It tells whether there
// were any and none is left: then it is time to join again, so that their new
// owners may have them.
func (m *member) drained(ctx context.Context) (bool, error) {
	now := time.Now()
	_, ready := m.c.draining(now)
	if len(ready) == 0 {
		return m.freed(now), nil
	}
	if err := m.commit(ctx); err != nil {
		if errors.Is(err, errForgotten) {
			return false, err
		}
		// The others are tried again at the next tick. Whose time is up is given
		// up all the same, or one offset that is refused would hold back them all.
		ready = slices.DeleteFunc(ready, func(p *inPartition) bool { return !p.overdue(now) })
	}
	// More may have drained since: they are not committed, and are for later.
	m.c.drop(func(p *inPartition) bool { return slices.Contains(ready, p) })
	if len(ready) > 0 && m.nobodys.IsZero() {
		m.nobodys = now
	}
	waiting, ready := m.c.draining(now)
	return waiting == 0 && len(ready) == 0 || m.freed(now), nil
}

// freed tells whether partitions that were given up have waited for those that
// still drain as long as may be: until the group is joined again nobody reads
// them, and one slow event would hold them all up.
func (m *member) freed(now time.Time) bool {
	return !m.nobodys.IsZero() && now.Sub(m.nobodys) >= maxNobodys
}

// overdue tells whether a draining partition's time is up.
func (p *inPartition) overdue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.After(p.drainBy)
}

// awaitDrained waits until nothing is open, as long as the context allows. It
// beats on meanwhile, also when a rebalance is called for, so that what ends
// can still be committed.
func (m *member) awaitDrained(ctx context.Context) {
	every := time.NewTicker(m.c.opt.SessionTimeout / heartbeatsInLife)
	defer every.Stop()
	who := identified{m.id, m.generation}
	for {
		if waiting, _ := m.c.draining(time.Now()); waiting == 0 {
			return
		}
		select {
		case <-m.wake:
		case <-every.C:
			if errors.Is(m.beat(ctx, who), errForgotten) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// depart drains everything, commits and leaves.
func (m *member) depart(ctx context.Context) {
	var parting []*inPartition
	m.c.each(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drain(time.Now().Add(time.Hour))
		if p.part() {
			parting = append(parting, p)
		}
	})
	m.farewell(ctx, parting)
	m.awaitDrained(ctx)
	m.lost() // no more time for the hook
	if m.id == "" {
		return
	}
	ctx, done := m.lastMoments(ctx)
	defer done()
	if err := m.commitLast(ctx); err != nil {
		m.c.b.log.Warn("consumer: committing the last offsets failed; later events will be delivered again", "group", m.group, "reason", err)
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if _, err := m.c.b.client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: m.group,
		Members: []kafka.LeaveGroupRequestMember{{ID: m.id}}}); err != nil {
		m.c.b.log.Warn("could not leave; the group waits for the session to time out", "group", m.group, "reason", err)
	}
}

// leaveTime is how long leaving goes on when Close has no more time.
const leaveTime = 2 * time.Second

// lastMoments are for the last commit: as long as a request may take while Close
// has time, since what is not committed will be done again.
func (m *member) lastMoments(ctx context.Context) (context.Context, func()) {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.c.b.requestTimeout)
	stop := context.AfterFunc(ctx, func() {
		_ = retry.Sleep(last, leaveTime)
		cancel()
	})
	return last, func() {
		stop()
		cancel()
	}
}

// commitLast waits out a rebalance: what has ended must not come again.
func (m *member) commitLast(ctx context.Context) error {
	var w backoff
	for {
		err := m.commit(ctx)
		if err == nil || !passing(err) && !errors.Is(err, kafka.RebalanceInProgress) || w.wait(ctx) != nil {
			return err
		}
	}
}

// parting says how far a partition that is taken away has been told of.
type parting int8

const (
	remaining parting = iota
	leaving           // Leaving has been called and has not returned
	left              // it has; nothing remains to be done but what is open
)

// remains tells whether a partition is ours and not about to go.
func (p *inPartition) remains() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.parting == remaining
}

// farewell lets the hook finish with partitions that have begun to drain. It
// has a goroutine of its own: what the hook waits for, a transaction perhaps,
// must not hold up heartbeats, commits or other partitions. Its time ends with
// the tenure too, since a member that is forgotten has nothing left to finish.
func (m *member) farewell(ctx context.Context, parts []*inPartition) {
	if len(parts) == 0 {
		return
	}
	tenure := m.tenure
	m.c.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.c.opt.DrainTimeout)
		defer cancel()
		defer context.AfterFunc(tenure, cancel)()
		m.c.hooks.Lock() // an Assigned that is being asked comes first
		at := firsts(parts)
		m.c.hooks.Unlock()
		m.c.opt.Leaving(ctx, at)
		for _, p := range parts {
			p.mu.Lock()
			p.parting = left
			p.mu.Unlock()
		}
		m.nudge()
	})
}

// firsts are the places of the first events that have not ended, in order.
func firsts(parts []*inPartition) []Position {
	all := make([]Position, 0, len(parts))
	for _, p := range parts {
		p.mu.Lock()
		all = append(all, Position{Stream: p.stream, Partition: p.tp.Partition, Offset: p.mark.next})
		p.mu.Unlock()
	}
	slices.SortFunc(all, comparePositions)
	return all
}

// part begins to drain a partition, and tells whether Leaving is to be called
// for it. Called with the lock held.
func (p *inPartition) part() bool {
	if p.gone || p.c.opt.Leaving == nil || p.parting != remaining {
		return false
	}
	p.parting = leaving
	return true
}

// giveUp gives up partitions at once, from whatever goroutine. The member's lets
// go of them, and then they can be taken again.
func (c *Consumer) giveUp(parts map[wire.TopicPartition]*inPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		p.mu.Lock()
		p.forsake()
		p.mu.Unlock()
	}
	c.announce() // Poll clears what is queued of them
}

// forsake makes a partition nobody's: what is still open of it no longer counts.
// Called with the lock held.
func (p *inPartition) forsake() {
	if !p.gone {
		p.gone = true
		p.epoch++
		p.series++
	}
}

// drop lets go of partitions, and of those that have been given up. Only the
// member's goroutine drops and takes, so that Gone comes before Assigned. No
// which leaves it at those that have been given up.
func (c *Consumer) drop(which func(*inPartition) bool) {
	var gone []*inPartition
	c.mu.Lock()
	for tp, p := range c.parts {
		p.mu.Lock()
		if p.gone || which != nil && which(p) {
			p.forsake()
			delete(c.parts, tp)
			gone = append(gone, p)
		}
		p.mu.Unlock()
	}
	c.announce() // Poll clears what is queued of them
	c.mu.Unlock()
	if len(gone) == 0 || c.opt.Gone == nil {
		return
	}
	c.hooks.Lock()
	defer c.hooks.Unlock()
	c.opt.Gone(firsts(gone))
}
