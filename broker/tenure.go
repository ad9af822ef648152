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

// apply takes new partitions and begins to drain those that now belong to other members.
func (m *member) apply(ctx context.Context, mine []wire.TopicPartition) error {
	var added []wire.TopicPartition
	var parting []*inPartition
	now := time.Now()
	m.c.drop(nil) // otherwise partitions that a transaction gave up would count as ours
	m.c.mu.Lock()
	for tp, p := range m.c.parts {
		keep := slices.Contains(mine, tp)
		p.mu.Lock()
		switch {
		case keep && p.parting == remaining:
			p.keep()
		case keep: // given back too late: it is given up first, and taken again in the next generation
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
	m.callLeaving(m.tenure, parting)
	m.c.counts.assigned.Store(int64(len(mine)))
	m.c.counts.rebalances.Add(1)
	m.c.b.log.Info("assigned", "group", m.group, "generation", m.generation, "partitions", len(mine), "new", len(added))
	return m.begin(ctx, added)
}

// begin starts to read partitions at the group's committed offsets.
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

// places returns where to start reading. It does not wait without limit: nothing is committed
// meanwhile, and the stream may be deleted, which only the next generation would notice.
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

// start adds the first offsets to read in partitions for which the group has no offset.
func (m *member) start(ctx context.Context, places map[wire.TopicPartition]origin, parts []wire.TopicPartition, from Start) error {
	if len(parts) == 0 {
		return nil
	}
	starts, err := m.c.b.startOffsets(ctx, parts, from)
	if err == nil {
		err = m.commitStarts(ctx, starts)
	}
	maps.Copy(places, starts)
	return err
}

// commitStarts commits the first offsets of a group before it reads from them. Without that, if the
// first reader of a partition dies before its first commit, the next reader must search the start
// again. For a start at the latest event, that start has moved by then.
func (m *member) commitStarts(ctx context.Context, starts map[wire.TopicPartition]origin) error {
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

// leave asks the member's goroutine to drain, commit and leave, and waits for it.
func (m *member) leave(ctx context.Context) error {
	m.once.Do(func() {
		m.until = ctx
		close(m.leaveNow)
	})
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("leave group %s: %w", m.group, context.Cause(ctx))
	}
}

// drained gives up partitions that were taken away, after their open events have ended and are
// committed or their time is up. It reports whether all of them are given up now. Then the member
// joins again, so that their new owners can read them.
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
		// Partitions that cannot be committed are tried again at the next tick. Those whose time is
		// up are given up nevertheless, because one refused offset must not hold back all of them.
		ready = slices.DeleteFunc(ready, func(p *inPartition) bool { return !p.overdue(now) })
	}
	// More partitions may have drained since the commit; the next call handles them.
	m.c.drop(func(p *inPartition) bool { return slices.Contains(ready, p) })
	if len(ready) > 0 && m.unownedSince.IsZero() {
		m.unownedSince = now
	}
	waiting, ready := m.c.draining(now)
	return waiting == 0 && len(ready) == 0 || m.freed(now), nil
}

// freed reports whether partitions that were given up have waited long enough for those that still
// drain. No member reads them until the group is joined again, so one slow event must not hold up
// all of them.
func (m *member) freed(now time.Time) bool {
	return !m.unownedSince.IsZero() && now.Sub(m.unownedSince) >= maxUnowned
}

// overdue reports whether a draining partition's time is up.
func (p *inPartition) overdue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.After(p.drainBy)
}

// awaitDrained waits until no event is open or the context ends. It sends heartbeats meanwhile,
// also during a rebalance, so that ended events can still be committed.
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

// depart drains all partitions, commits and leaves the group.
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
	m.callLeaving(ctx, parting)
	m.awaitDrained(ctx)
	m.lost() // the time for Leaving ends here
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

// leaveTime is the time for leaving after the context of Close has ended.
const leaveTime = 2 * time.Second

// lastMoments returns the context of the last commit. It lasts as long as a request may take while
// Close has time, because uncommitted events will be repeated.
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

// commitLast retries through a rebalance, because ended events must not be delivered again.
func (m *member) commitLast(ctx context.Context) error {
	var w backoff
	for {
		err := m.commit(ctx)
		if err == nil || !passing(err) && !errors.Is(err, kafka.RebalanceInProgress) || w.wait(ctx) != nil {
			return err
		}
	}
}

// parting is the state of the Leaving hook for a partition that is taken away.
type parting int8

const (
	remaining parting = iota
	leaving           // Leaving has been called and has not returned
	left              // Leaving has returned; only open events remain
)

// remains reports whether a partition is read here and is not about to be given up.
func (p *inPartition) remains() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.parting == remaining
}

// callLeaving calls the Leaving hook for partitions that have begun to drain, in its own goroutine.
// The hook may wait, for a transaction perhaps, and must not delay heartbeats, commits or other
// partitions. Its context also ends with the tenure, because a forgotten member has nothing left to
// finish.
func (m *member) callLeaving(ctx context.Context, parts []*inPartition) {
	if len(parts) == 0 {
		return
	}
	tenure := m.tenure
	m.c.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.c.opt.DrainTimeout)
		defer cancel()
		defer context.AfterFunc(tenure, cancel)()
		m.c.hooks.Lock() // waits for a call of Assigned that is under way
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

// firsts returns the positions of the first events that have not ended, sorted.
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

// part marks a draining partition as leaving, and reports whether Leaving must be called for it.
// The caller holds the lock.
func (p *inPartition) part() bool {
	if p.gone || p.c.opt.Leaving == nil || p.parting != remaining {
		return false
	}
	p.parting = leaving
	return true
}

// giveUp gives up partitions at once. Any goroutine may call it. The member's goroutine drops them
// later, and then they can be taken again.
func (c *Consumer) giveUp(parts map[wire.TopicPartition]*inPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		p.mu.Lock()
		p.markGone()
		p.mu.Unlock()
	}
	c.announce() // Poll removes their deliveries from the queue
}

// markGone marks a partition as given up, so that its open events no longer count. The caller holds
// the lock.
func (p *inPartition) markGone() {
	if !p.gone {
		p.gone = true
		p.epoch++
		p.series++
	}
}

// drop removes the partitions that were given up, and those that which selects; nil selects none.
// Only the member's goroutine takes and drops partitions, so Gone is called before the next
// Assigned.
func (c *Consumer) drop(which func(*inPartition) bool) {
	var gone []*inPartition
	c.mu.Lock()
	for tp, p := range c.parts {
		p.mu.Lock()
		if p.gone || which != nil && which(p) {
			p.markGone()
			delete(c.parts, tp)
			gone = append(gone, p)
		}
		p.mu.Unlock()
	}
	c.announce() // Poll removes their deliveries from the queue
	c.mu.Unlock()
	if len(gone) == 0 || c.opt.Gone == nil {
		return
	}
	c.hooks.Lock()
	defer c.hooks.Unlock()
	c.opt.Gone(firsts(gone))
}
