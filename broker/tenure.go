package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
		if m.c.parts[tp] == nil {
			added = append(added, tp)
		}
	}
	m.c.mu.Unlock()
	m.callLeaving(m.tenure, parting)
	m.c.counts.assigned.Store(int64(len(mine)))
	m.c.counts.rebalances.Add(1)
	m.c.b.log.Info("consumer: partitions assigned", "group", m.group, "generation", m.generation, "partitions", len(mine), "new", len(added))
	return m.beginReading(ctx, added)
}

// beginReading starts to read partitions at the group's committed offsets.
func (m *member) beginReading(ctx context.Context, added []wire.TopicPartition) error {
	if len(added) == 0 {
		return nil
	}
	places, err := m.startPlaces(ctx, added)
	if err != nil {
		return err
	}
	return m.c.take(ctx, places)
}

// startPlaces returns where to start reading. The wait has a limit, because nothing is committed
// meanwhile. And only the next generation would notice that the stream was deleted.
func (m *member) startPlaces(ctx context.Context, added []wire.TopicPartition) (map[wire.TopicPartition]origin, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	known, err := m.c.b.committedOffsets(ctx, m.group, added)
	if err != nil {
		return nil, err
	}
	places := map[wire.TopicPartition]origin{}
	var missing []wire.TopicPartition
	var again []groupRecord
	lives := knownLives{b: m.c.b}
	recorded := sync.OnceValues(func() (map[wire.TopicPartition]groupRecord, error) { return m.recorded(ctx) })
	for _, tp := range added {
		o, ok := known[tp]
		if !ok || o.Offset < 0 {
			missing = append(missing, tp)
			continue
		}
		place, last, err := m.placeOf(ctx, tp, o, recorded, &lives)
		switch {
		case err != nil:
			return nil, err
		case last != nil:
			again = append(again, *last)
		default:
			places[tp] = place
		}
	}
	if err := m.addMissing(ctx, places, missing, again, &lives); err != nil {
		return nil, err
	}
	return places, m.recordStarts(ctx, places)
}

// placeOf returns where to go on after a committed offset. If the stream was created again since, it returns
// the group's last place instead, which a record may have.
func (m *member) placeOf(ctx context.Context, tp wire.TopicPartition, o wire.CommittedOffset, recorded func() (map[wire.TopicPartition]groupRecord, error), lives *knownLives) (origin, *groupRecord, error) {
	before := lifeOf(o.Metadata)
	l, isNew, err := lives.after(ctx, tp.Topic, before)
	unknown := before == (life{}) && m.c.b.dialer.hasTopicIDs.Load()
	if err != nil || !isNew && !unknown {
		return origin{l.base + o.Offset, withLife(o.Metadata, l)}, nil, err
	}
	records, err := recorded()
	if err != nil {
		return origin{}, nil, err
	}
	last := m.recordOf(tp, origin{o.Offset, o.Metadata})
	if r := records[tp]; unknown { // a person or an earlier version has committed it, in the present stream
		l, _, err = lives.after(ctx, tp.Topic, lifeOf(r.Metadata))
		return origin{l.base + o.Offset, withLife(o.Metadata, l)}, nil, err
	} else if lifeOf(r.Metadata).base > before.base { // a life has begun, and events of the one before are open
		if l, isNew, err = lives.after(ctx, tp.Topic, lifeOf(r.Metadata)); err != nil || !isNew {
			return l.place(origin{before.base + o.Offset, o.Metadata}), nil, err
		}
		last = r
	}
	return origin{}, &last, nil
}

// addMissing adds the places of partitions for which Kafka has no offset of the group. A record or an
// event on a companion shows that Kafka has forgotten the offset. Otherwise the partition was added
// to a stream that the group reads, or the group is new. again are the partitions of streams that were
// created again.
func (m *member) addMissing(ctx context.Context, places map[wire.TopicPartition]origin, missing []wire.TopicPartition, again []groupRecord, lives *knownLives) error {
	if len(missing)+len(again) == 0 {
		return nil
	}
	records, err := m.recorded(ctx)
	if err != nil {
		return err
	}
	var fresh, grown []wire.TopicPartition
	lost := again
	for _, tp := range missing {
		if r, ok := records[tp]; ok {
			lost = append(lost, r)
		} else if m.began[tp.Topic] {
			grown = append(grown, tp)
		} else {
			fresh = append(fresh, tp)
		}
	}
	fresh, unrecorded, err := m.withoutRecord(ctx, fresh)
	if err == nil {
		err = m.restore(ctx, places, append(lost, unrecorded...), records, lives)
	}
	if err == nil {
		err = m.addFirstOffsets(ctx, places, fresh, m.c.opt.Start, lives)
	}
	if err == nil {
		err = m.addFirstOffsets(ctx, places, grown, Earliest(), lives)
	}
	return err
}

// addFirstOffsets adds the first offsets to read in partitions for which the group has no offset. It asks for the
// topics' ids first: an offset of a stream that is created again meanwhile must not get the new id.
func (m *member) addFirstOffsets(ctx context.Context, places map[wire.TopicPartition]origin, parts []wire.TopicPartition, from Start, lives *knownLives) error {
	if len(parts) == 0 {
		return nil
	}
	now := map[string]life{}
	for _, tp := range parts {
		l, _, err := lives.after(ctx, tp.Topic, life{})
		if err != nil {
			return err
		}
		now[tp.Topic] = l
	}
	starts, err := m.c.b.startOffsets(ctx, parts, from)
	for tp, at := range starts {
		starts[tp] = origin{at.offset, now[tp.Topic].encode()}
	}
	if err == nil {
		err = m.commitStarts(ctx, starts)
	}
	maps.Copy(places, starts)
	return err
}

// commitStarts commits the first or restored offsets of a group before the member reads from them. Otherwise,
// if the first reader of a partition died before its first commit, the next reader would search the
// start again. A start at the latest event would have moved by then.
func (m *member) commitStarts(ctx context.Context, starts map[wire.TopicPartition]origin) error {
	m.committing.Lock()
	defer m.committing.Unlock()
	for {
		topics := map[string][]kafka.OffsetCommit{}
		for tp, from := range starts {
			with := from.metadata
			if m.bare && lifeOf(with).base == 0 {
				with = withLife(with, life{})
			}
			topics[tp.Topic] = append(topics[tp.Topic], kafka.OffsetCommit{Partition: int(tp.Partition), Offset: kafkaOffset(from.offset), Metadata: with})
		}
		refused, err := m.commitOffsets(ctx, topics)
		for tp, e := range refused {
			err = errors.Join(err, named("commit the start of", fmt.Sprintf("%s/%d", tp.Topic, tp.Partition), e))
		}
		if !errors.Is(err, kafka.OffsetMetadataTooLarge) || m.bare {
			return markOvertaken(asMembership(err))
		}
		m.bare = true
	}
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
		m.c.hooks.Lock() // waits for a call of Assigned that is under way
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
// returns true. If which is nil, no others are removed. Only the member's goroutine takes and drops
// partitions, so Gone is called before the next Assigned.
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
	if len(gone) == 0 || c.opt.Gone == nil {
		return
	}
	c.hooks.Lock()
	defer c.hooks.Unlock()
	c.opt.Gone(firstPositions(gone))
}
