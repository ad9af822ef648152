package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
)

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
		m.c.b.log.Warn("the last offsets could not be committed; what lies behind them will be delivered again", "group", m.group, "reason", err)
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
		_ = sleep(last, leaveTime)
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
