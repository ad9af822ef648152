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
	m.c.dropPartitions(nil) // otherwise partitions that a transaction gave up would count as read here
	// Otherwise these would count as being prepared, if their preparations have ended only now.
	if err := m.endPrepared(); err != nil {
		return err
	}
	if m.interruptPreparing(mine) {
		m.startOver() // the new owner gets the partition as soon as this member no longer claims it
	}
	m.c.mu.Lock()
	for tp, p := range m.c.parts {
		keep := slices.Contains(mine, tp)
		p.mu.Lock()
		switch {
		case keep && p.parting == remaining:
			p.undoDrain()
		case keep: // the partition is given back too late: it is given up first, and taken again in the next generation
		default:
			p.drain(now.Add(m.c.opt.DrainTimeout))
			if p.markLeaving() {
				parting = append(parting, p)
			}
		}
		p.mu.Unlock()
	}
	for _, tp := range mine {
		if m.c.parts[tp] == nil && !m.isPreparing(tp) {
			added = append(added, tp)
		}
	}
	m.c.mu.Unlock()
	m.c.nudgeAll() // a fetcher whose partitions all drained sleeps, and does not see that they are given back
	m.callLeaving(m.tenure, parting)
	m.c.counts.assigned.Store(int64(len(mine)))
	m.c.counts.rebalances.Add(1)
	m.c.b.log.Info("consumer: partitions assigned", "group", m.group, "generation", m.generation, "partitions", len(mine), "new", len(added))
	if len(added) == 0 {
		return nil
	}
	places, err := m.startPlaces(ctx, added)
	if err != nil {
		return err
	}
	m.prepare(places)
	return nil
}

// preparation is a call of the hook Assigned, after which its partitions are read. The hook may read
// millions of records. If the member waited for it, it would not join in time, and the group would
// give its partitions to others, who would have to prepare them, too. So each preparation has its own
// goroutine. Only the member's goroutine starts and interrupts preparations, and claims their
// partitions when it joins.
type preparation struct {
	places map[wire.TopicPartition]origin
	cancel context.CancelFunc
	done   chan struct{}
	err    error // result, once done is closed
}

// prepare starts to read partitions at the given places.
func (m *member) prepare(places map[wire.TopicPartition]origin) {
	ctx, cancel := context.WithCancel(m.tenure)
	p := &preparation{places: places, cancel: cancel, done: make(chan struct{})}
	m.preparing = append(m.preparing, p)
	m.c.running.Go(func() {
		defer m.nudge()
		defer close(p.done)
		p.err = m.c.take(ctx, maps.Clone(places))
	})
}

// endPrepared forgets the preparations that have ended, and returns their errors.
func (m *member) endPrepared() (err error) {
	m.preparing = slices.DeleteFunc(m.preparing, func(p *preparation) bool {
		ended := isClosed(p.done)
		if ended {
			p.cancel()
			err = errors.Join(err, p.err)
		}
		return ended
	})
	return err
}

// interruptPreparing ends the preparations that have other partitions than the given ones. It reports
// whether any of them had not succeeded. It waits for their hooks, which must return soon after their
// contexts have ended.
func (m *member) interruptPreparing(keep []wire.TopicPartition) (unfinished bool) {
	m.preparing = slices.DeleteFunc(m.preparing, func(p *preparation) bool {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(p.places)), func(tp wire.TopicPartition) bool { return !slices.Contains(keep, tp) }) {
			return false
		}
		p.cancel()
		<-p.done
		unfinished = unfinished || p.err != nil
		return true
	})
	return unfinished
}

func (m *member) isPreparing(tp wire.TopicPartition) bool {
	return slices.ContainsFunc(m.preparing, func(p *preparation) bool { _, is := p.places[tp]; return is })
}

// owned returns the partitions that the member reads or is preparing.
func (m *member) owned() []wire.TopicPartition {
	all := map[wire.TopicPartition]bool{}
	m.c.eachPartition(func(p *inPartition) { all[p.tp] = true })
	for _, p := range m.preparing {
		for tp := range p.places {
			all[tp] = true
		}
	}
	return slices.Collect(maps.Keys(all))
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

// giveUpDrained gives up partitions that were taken away, after their open events have ended and
// are committed or their time is up. It reports whether all these partitions are given up now. Then
// the member joins again, so that the new owners can read the partitions.
func (m *member) giveUpDrained(ctx context.Context) (bool, error) {
	now := time.Now()
	_, ready := m.c.countDraining(now)
	if len(ready) == 0 {
		return m.isFreed(now), nil
	}
	if err := m.commit(ctx, true); err != nil {
		if errors.Is(err, errForgotten) {
			return false, err
		}
		// Partitions that cannot be committed are tried again at the next tick. Partitions whose
		// time is up are given up nevertheless, because one refused offset must not delay all of
		// them.
		ready = slices.DeleteFunc(ready, func(p *inPartition) bool { return !p.isOverdue(now) })
	}
	// More partitions may have drained since the commit; the next call handles them.
	m.c.dropPartitions(func(p *inPartition) bool { return slices.Contains(ready, p) })
	if len(ready) > 0 && m.unownedSince.IsZero() {
		m.unownedSince = now
	}
	waiting, ready := m.c.countDraining(now)
	return waiting == 0 && len(ready) == 0 || m.isFreed(now), nil
}

// isFreed reports whether partitions that were given up have waited long enough for the partitions
// that still drain. No member reads them until this member joins the group again, so one slow event
// must not delay all of them.
func (m *member) isFreed(now time.Time) bool {
	return !m.unownedSince.IsZero() && now.Sub(m.unownedSince) >= maxUnowned
}

// isOverdue reports whether a draining partition's time is up.
func (p *inPartition) isOverdue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.After(p.drainBy)
}

// awaitDrained waits until no event is open or the context ends. Meanwhile awaitDrained sends
// heartbeats, also during a rebalance, so that ended events can still be committed.
func (m *member) awaitDrained(ctx context.Context) {
	every := time.NewTicker(m.c.opt.SessionTimeout / heartbeatsInLife)
	defer every.Stop()
	who := memberIdentity{m.id, m.generation}
	for {
		if waiting, _ := m.c.countDraining(time.Now()); waiting == 0 {
			return
		}
		select {
		case <-m.wake:
		case <-every.C:
			if errors.Is(m.sendHeartbeat(ctx, who), errForgotten) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// drainAndLeave drains all partitions, commits and leaves the group.
func (m *member) drainAndLeave(ctx context.Context) {
	var parting []*inPartition
	m.c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drain(time.Now().Add(time.Hour))
		if p.markLeaving() {
			parting = append(parting, p)
		}
	})
	m.callLeaving(ctx, parting)
	m.awaitDrained(ctx)
	m.lost() // ends the context of Leaving
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
		m.c.b.log.Warn("consumer: leaving the group failed; the group waits for the session to time out", "group", m.group, "reason", err)
	}
}

// leaveTime is the time for leaving after the context of Close has ended.
const leaveTime = 2 * time.Second

// lastMoments returns the context of the last commit. While Close has time, this context lasts as
// long as a request may take, because uncommitted events will be repeated.
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

// commitLast retries through a rebalance, because ended events must not be delivered again. Offsets of
// a deleted stream have no use.
func (m *member) commitLast(ctx context.Context) error {
	var w backoff
	for {
		err := m.commit(ctx, true)
		if errors.Is(err, kafka.UnknownTopicOrPartition) && m.c.lacksStream() {
			return nil
		}
		if err == nil || !isTransient(err) && !errors.Is(err, kafka.RebalanceInProgress) || w.wait(ctx) != nil {
			return err
		}
	}
}

// leavingState is the state of the Leaving hook for a partition that is taken away.
type leavingState int8

const (
	remaining leavingState = iota
	leaving                // Leaving has been called and has not returned
	left                   // Leaving has returned, but events may be open
)

// isKept reports whether a partition is read here and will not be given up now.
func (p *inPartition) isKept() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && p.parting == remaining
}

// callLeaving calls the Leaving hook for partitions that have begun to drain, in its own goroutine.
// The hook may wait, perhaps for a transaction, and must not delay heartbeats, commits or other
// partitions. The hook's context also ends with the tenure, because a member that the group has
// forgotten cannot commit.
func (m *member) callLeaving(ctx context.Context, parts []*inPartition) {
	if len(parts) == 0 {
		return
	}
	tenure := m.tenure
	m.c.running.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, m.c.opt.DrainTimeout)
		defer cancel()
		defer context.AfterFunc(tenure, cancel)()
		m.c.hooks.Lock() // waits for a transaction that calls Assigned
		at := firstPositions(parts)
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

// firstPositions returns the positions of the first events that have not ended, sorted.
func firstPositions(parts []*inPartition) []Position {
	all := make([]Position, 0, len(parts))
	for _, p := range parts {
		p.mu.Lock()
		all = append(all, Position{Stream: p.stream, Partition: p.tp.Partition, Offset: p.mark.next})
		p.mu.Unlock()
	}
	slices.SortFunc(all, comparePositions)
	return all
}

// markLeaving marks a draining partition as leaving, and reports whether Leaving must be called for
// it. The caller holds the lock.
func (p *inPartition) markLeaving() bool {
	if p.gone || p.c.opt.Leaving == nil || p.parting != remaining {
		return false
	}
	p.parting = leaving
	return true
}

// giveUp gives up partitions at once. Any goroutine may call it. The member's goroutine drops these
// partitions later. After that they can be taken again.
func (c *Consumer) giveUp(parts map[wire.TopicPartition]*inPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range parts {
		p.mu.Lock()
		p.markGone()
		p.mu.Unlock()
	}
	c.wakePoll() // Poll removes their deliveries from the queue
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

// dropPartitions removes the partitions that were given up, and those for which the function which
// returns true. If which is nil, no others are removed. Only the member's goroutine drops partitions,
// so Gone is called before the next Assigned.
func (c *Consumer) dropPartitions(which func(*inPartition) bool) {
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
	c.wakePoll() // Poll removes their deliveries from the queue
	c.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	c.hooks.Lock() // waits for a transaction that calls Assigned for them
	defer c.hooks.Unlock()
	if c.opt.Gone != nil {
		c.opt.Gone(firstPositions(gone))
	}
}
