package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// member keeps a consumer's place in its group. One goroutine runs it:
//
//	join → take the new partitions, begin to drain those taken away → steady
//	steady: heartbeats and commits. It ends when a rebalance is requested, when
//	the partitions taken away have drained, when the group has forgotten the
//	member, or when the consumer leaves
//
// Partitions that stay are read and committed all the time.
type member struct {
	c        *Consumer
	group    string // name of the group in Kafka
	wake     chan struct{}
	leaveNow chan struct{} // closed when the member is to leave
	gone     chan struct{} // closed after the member has left
	once     sync.Once
	until    context.Context // context that limits the time for leaving; set before leaveNow is closed

	mu         sync.Mutex // guards the fields below, which transactions read
	id         string
	generation int32
	slot       int32
	slots      int32
	transactor *Transactor // if it is set, this member fences slots

	committing  retry.Mutex // held while offsets are committed outside a transaction
	bare        bool        // whether Kafka allows less metadata than ours; guarded by committing
	rejoinAsked atomic.Bool // whether to join again
	between     atomic.Bool // whether a join has begun and none has succeeded since

	tenure context.Context // context that ends when the group has forgotten the member or the member has left; used by its goroutine only
	lost   context.CancelFunc

	preparing []*preparation // used by the member's goroutine only

	unownedSince time.Time // time since which partitions that this generation gave up have no reader

	committed   time.Time // time of the last regular commit, successful or not; used by the member's goroutine only
	recommitted time.Time // time of the last commit of all offsets in this generation; used by the member's goroutine only

	joined int32 // generation of the last join, successful or not; -1 before; used by the member's goroutine only

	began map[string]bool // topics that the group read before this generation

	counts map[string]int // number of partitions of each topic at the last assignment; leader only
	leads  bool
}

const (
	protocolName     = "tidemill"
	protocolType     = "consumer"
	rebalanceTimeout = 10 * time.Second // two sessions if that is less, because kfake waits that long for a member that died while joining
	maxUnowned       = 500 * time.Millisecond
	memberIDRequired = kafka.Error(79)
)

func newMember(c *Consumer) *member {
	m := &member{c: c, group: c.b.names.Group(c.opt.Group), wake: make(chan struct{}, 1), leaveNow: make(chan struct{}),
		gone: make(chan struct{}), generation: -1, slot: -1, joined: -1, committed: time.Now()}
	m.startTenure()
	return m
}

// startTenure starts a new tenure: partitions that are read from here on belong to it.
func (m *member) startTenure() { m.tenure, m.lost = context.WithCancel(m.c.ctx) }

func (m *member) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *member) run() {
	defer close(m.gone)
	ctx, cancel := context.WithCancel(m.c.ctx)
	defer cancel()
	go func() { // a join may wait for other members, but leaving must not wait
		select {
		case <-m.leaveNow:
			cancel()
		case <-ctx.Done():
		}
	}()
	var w backoff
	var again bool
	var err error
	for ctx.Err() == nil || m.isOvertaken(err) {
		again, err = m.runGeneration(ctx)
		switch {
		case err == nil && again:
			w = backoff{}
		case ctx.Err() != nil:
			_ = w.wait(m.c.ctx)
		case errors.Is(err, errForgotten):
			m.c.b.log.Warn("consumer: the membership failed; leaving unfinished partitions and joining the group again", "group", m.group, "reason", err)
			m.giveUpAll()
			_ = w.wait(ctx)
		case err != nil && !isTransient(err) && !errors.Is(err, kafka.Unknown):
			m.c.failReading(fmt.Errorf("group %s: %w", m.group, err))
			<-ctx.Done()
		default:
			m.c.b.log.Info("consumer: joining the group failed; retrying", "group", m.group, "reason", err)
			_ = w.wait(ctx)
		}
	}
	if isClosed(m.leaveNow) {
		m.interruptPreparing(nil)
		m.drainAndLeave(m.until)
	}
	m.lost()
	m.interruptPreparing(nil)
	m.c.dropPartitions(func(*inPartition) bool { return true })
}

// runGeneration runs one generation.
func (m *member) runGeneration(ctx context.Context) (again bool, err error) {
	m.c.dropPartitions(nil) // partitions that a transaction gave up must be dropped before they can be assigned here again
	joining, done := m.joinContext(ctx)
	m.between.Store(true)
	mine, err := m.join(joining)
	done()
	if err != nil {
		return false, err
	}
	m.between.Store(false)
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.unownedSince = time.Time{}
	beat := m.heartbeatLoop(hctx, memberIdentity{m.id, m.generation})
	m.recommitted = time.Now()
	// While an Assigned fails, here or at another member, no generation may be long enough for a tick.
	if time.Since(m.committed) >= m.c.opt.CommitEvery {
		if err := m.commitRegularly(ctx); err != nil {
			return false, err
		}
	}
	if err := m.apply(ctx, mine); err != nil {
		return false, err
	}
	return true, m.runSteady(ctx, beat)
}

// isOvertaken reports whether a leaving member must join again to be able to commit, because
// another rebalance overtook its last join.
func (m *member) isOvertaken(err error) bool {
	return isClosed(m.leaveNow) && err != nil && isTransient(err) && m.until.Err() == nil && m.c.ctx.Err() == nil && m.hasUncommitted()
}

// hasUncommitted reports whether an event handed out is not committed yet, or Leaving has not
// finished with a partition.
func (m *member) hasUncommitted() (owes bool) {
	m.c.eachPartition(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		owes = owes || !p.gone && (p.mark.openCount() > 0 || p.mark.next > p.committed || m.c.opt.Leaving != nil && p.parting != left)
	})
	return owes
}

// joinContext returns the context of a join. A member that leaves but has offsets to commit
// finishes its join. If the member stopped in the middle of a join, it would have left the old
// generation without knowing the new one. Then it could no longer commit. A member without such
// offsets leaves at once, even if the join still waits for other members.
func (m *member) joinContext(ctx context.Context) (context.Context, context.CancelFunc) {
	whole, cancel := context.WithCancel(m.c.ctx)
	stop := context.AfterFunc(ctx, func() {
		if !m.hasUncommitted() {
			cancel()
		}
	})
	return whole, func() {
		stop()
		cancel()
	}
}

var errForgotten = errors.New("the group has forgotten this member")

// asMembership turns the codes that mean "this is not a member" into one error.
func asMembership(err error) error {
	for _, code := range []kafka.Error{kafka.UnknownMemberId, kafka.IllegalGeneration, kafka.FencedInstanceID} {
		if errors.Is(err, code) {
			return fmt.Errorf("%w: %w", errForgotten, err)
		}
	}
	return err
}

// giveUpAll gives up all partitions, because other members may read them already.
func (m *member) giveUpAll() {
	m.lost()
	m.interruptPreparing(nil)
	m.c.dropPartitions(func(*inPartition) bool { return true })
	m.startTenure()
	m.joined = -1
	m.between.Store(false)
	m.mu.Lock()
	m.id, m.generation = "", -1
	m.mu.Unlock()
}

// runSteady runs until the generation ends.
func (m *member) runSteady(ctx context.Context, beat <-chan error) error {
	commits := time.NewTicker(m.c.opt.CommitEvery)
	defer commits.Stop()
	growth := time.NewTicker(m.c.b.growthEvery)
	defer growth.Stop()
	for {
		if err := m.endPrepared(); err != nil {
			return err
		}
		if drained, err := m.giveUpDrained(ctx); drained || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-beat:
			if errors.Is(err, kafka.RebalanceInProgress) {
				return nil
			}
			return err
		case <-commits.C:
			if err := m.commitRegularly(ctx); err != nil {
				return err
			}
		case <-growth.C:
			m.checkStreams(ctx)
			if m.haveChanged(ctx) {
				return nil
			}
		case <-m.wake:
			if m.rejoinAsked.Swap(false) {
				return nil
			}
		}
	}
}

// startOver makes the member join again.
func (m *member) startOver() {
	m.rejoinAsked.Store(true)
	m.nudge()
}

// heartbeatLoop sends heartbeats in its own goroutine, so that slow work does not end the
// membership. It reports the end of the generation once. After a rebalance is announced it
// continues, because a member that still fetches offsets or waits for a callback is alive.
func (m *member) heartbeatLoop(ctx context.Context, who memberIdentity) <-chan error {
	ended := make(chan error, 1)
	m.c.running.Go(func() {
		every := m.c.opt.SessionTimeout / heartbeatsInLife
		for retry.Sleep(ctx, every) == nil {
			err := m.sendHeartbeat(ctx, who)
			forgotten := errors.Is(err, errForgotten)
			if forgotten || errors.Is(err, kafka.RebalanceInProgress) {
				select {
				case ended <- err:
				default: // reported already
				}
			}
			if forgotten {
				return
			}
		}
	})
	return ended
}

// memberIdentity is a member's id in one generation.
type memberIdentity struct {
	id         string
	generation int32
}

// sendHeartbeat sends one heartbeat. It stops waiting for the answer while time remains for another
// try, because one lost answer must not end the membership.
func (m *member) sendHeartbeat(ctx context.Context, who memberIdentity) error {
	ctx, cancel := context.WithTimeout(ctx, m.c.opt.SessionTimeout/4)
	defer cancel()
	node, err := m.c.b.coordinator(ctx, m.group)
	if err != nil {
		return err
	}
	var frame wire.Frame
	frame.Heartbeat(m.c.b.names.Install(), m.group, who.generation, who.id)
	answer, err := m.c.b.call(ctx, node, &frame, nil)
	if err != nil {
		return err
	}
	code, err := wire.ReadCode(answer)
	if err == nil && code != 0 {
		err = asMembership(kafka.Error(code))
	}
	return err
}

type introduction struct {
	Generation int32    `json:"generation"`
	Slot       int32    `json:"slot"`
	Slots      int32    `json:"slots"`
	Unread     []string `json:"unread,omitempty"` // topics that the member names and does not read; see ConsumerOptions.Companions
}

type placement struct {
	Slot  int32    `json:"slot"`
	Slots int32    `json:"slots"`
	Fence []int32  `json:"fence,omitempty"`
	Began []string `json:"began,omitempty"` // topics that the group read before this generation, for groups that start at the latest event
}

// joinLimit is how long a member waits for the others before it joins again. It is random: each join makes kfake's wait for
// the others begin again, so members that repeat their joins in step could wait for ever.
func joinLimit() time.Duration { return 2*rebalanceTimeout + rand.N(rebalanceTimeout) }

// join joins the group and returns this member's partitions in the new generation. The server first waits for the
// other members and then for the leader; each wait has its own limit. The member sends heartbeats meanwhile, because
// either wait may take longer than a session, and so may the work of a leader. Kafka removes a silent member.
func (m *member) join(ctx context.Context) ([]wire.TopicPartition, error) {
	joining, done := context.WithTimeout(ctx, joinLimit())
	res, err := m.enter(joining)
	done()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	m.joined = int32(res.GenerationID)
	m.heartbeatLoop(ctx, memberIdentity{res.MemberID, m.joined})
	sync := &kafka.SyncGroupRequest{GroupID: m.group, GenerationID: res.GenerationID, MemberID: res.MemberID,
		ProtocolType: protocolType, ProtocolName: protocolName}
	m.leads = res.LeaderID == res.MemberID
	if m.leads {
		if sync.Assignments, err = m.assignPartitions(ctx, res); err != nil {
			return nil, err
		}
	}
	got, err := m.syncGroup(ctx, sync)
	if err != nil {
		return nil, err
	}
	return m.placed(ctx, res, &got.Assignment)
}

// syncGroup waits for the leader's assignment. kafka-go reads an answer with an error as
// an unexpected EOF. So after any error the member joins again, because another question would get the same answer.
func (m *member) syncGroup(ctx context.Context, req *kafka.SyncGroupRequest) (*kafka.SyncGroupResponse, error) {
	got, err := m.c.b.patient.SyncGroup(ctx, req)
	if err == nil {
		err = got.Error
	}
	if err != nil {
		return nil, markOvertaken(asMembership(fmt.Errorf("sync: %w", err)))
	}
	return got, nil
}

// markOvertaken marks an error as passing if another rebalance has overtaken this one.
func markOvertaken(err error) error {
	if errors.Is(err, kafka.RebalanceInProgress) {
		return errors.Join(kafka.LeaderNotAvailable, err)
	}
	return err
}

func (m *member) enter(ctx context.Context) (*kafka.JoinGroupResponse, error) {
	owned := map[string][]int{}
	for _, tp := range m.owned() {
		owned[tp.Topic] = append(owned[tp.Topic], int(tp.Partition))
	}
	topics, unread := m.topics()
	self, err := json.Marshal(introduction{m.generation, m.slot, m.slots, unread})
	if err != nil {
		return nil, err
	}
	req := &kafka.JoinGroupRequest{GroupID: m.group, MemberID: m.id, SessionTimeout: m.c.opt.SessionTimeout,
		RebalanceTimeout: min(rebalanceTimeout, 2*m.c.opt.SessionTimeout), ProtocolType: protocolType,
		Protocols: []kafka.GroupProtocol{{Name: protocolName,
			Metadata: kafka.GroupProtocolSubscription{Topics: append(topics, unread...), UserData: self, OwnedPartitions: owned}}}}
	ctx, done := m.beatWhileJoining(ctx)
	defer done()
	for {
		res, err := m.c.b.patient.JoinGroup(ctx, req)
		if err == nil && errors.Is(res.Error, memberIDRequired) && req.MemberID == "" {
			req.MemberID = res.MemberID
			m.mu.Lock()
			m.id = res.MemberID // a member that stops waiting must leave with this id
			m.mu.Unlock()
			continue
		}
		if err == nil {
			err = res.Error
		}
		if err != nil {
			if cause := context.Cause(ctx); errors.Is(cause, errForgotten) {
				err = cause
			}
			return nil, markOvertaken(asMembership(fmt.Errorf("join: %w", err)))
		}
		return res, nil
	}
}

// topics returns the topics that the member reads, and those of the group's companions.
func (m *member) topics() (read, companions []string) {
	for _, s := range m.c.opt.Streams {
		read = append(read, m.c.b.names.Topic(s))
	}
	for _, s := range m.c.opt.Companions {
		companions = append(companions, m.c.b.names.Topic(s))
	}
	return read, companions
}

// beatWhileJoining sends heartbeats while a member waits for the others to join. The others may
// take longer than a session. kfake then removes the waiting members and never answers them, so
// UnknownMemberId ends the wait. The error that the generation has ended does not end the wait,
// because every answer to a join ends a generation.
func (m *member) beatWhileJoining(ctx context.Context) (context.Context, func()) {
	if m.joined < 0 { // the member is not in the group yet, so kfake cannot remove it
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	beat := m.heartbeatLoop(ctx, memberIdentity{m.id, m.joined})
	m.c.running.Go(func() {
		for {
			select {
			case err := <-beat:
				if errors.Is(err, kafka.UnknownMemberId) {
					cancel(err)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() { cancel(nil) }
}

func (m *member) placed(ctx context.Context, res *kafka.JoinGroupResponse, got *kafka.GroupProtocolAssignment) ([]wire.TopicPartition, error) {
	var place placement
	if len(got.UserData) > 0 {
		if err := json.Unmarshal(got.UserData, &place); err != nil {
			return nil, fmt.Errorf("the group's leader is no Tidemill: %w", err)
		}
	}
	m.mu.Lock()
	m.id, m.generation = res.MemberID, int32(res.GenerationID)
	moved := m.slot != place.Slot
	m.slot, m.slots = place.Slot, place.Slots
	transactor := m.transactor
	m.began = map[string]bool{}
	for _, topic := range place.Began {
		m.began[topic] = true
	}
	m.mu.Unlock()
	if transactor != nil {
		if moved {
			m.c.running.Go(transactor.takeSlot)
		}
		for _, slot := range place.Fence {
			m.c.running.Go(func() { m.fence(m.c.ctx, slot) })
		}
	}
	var mine []wire.TopicPartition
	read, _ := m.topics()
	for topic, parts := range got.AssignedPartitions {
		if !slices.Contains(read, topic) { // a leader of an earlier version assigns companions, too
			continue
		}
		for _, p := range parts {
			mine = append(mine, wire.TopicPartition{Topic: topic, Partition: int32(p)})
		}
	}
	return mine, nil
}
