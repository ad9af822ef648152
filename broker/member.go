package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// member keeps a consumer's place in its group. One goroutine runs it:
//
//	join → take what is new, begin to drain what is taken away → steady
//	steady: heartbeats, commits; ends when a rebalance is called for, when
//	what was taken away has drained, when the group has forgotten us, or when
//	the consumer leaves
//
// What is retained goes on being read and committed all the while.
type member struct {
	c     *Consumer
	group string // as Kafka knows it
	wake  chan struct{}
	leavy chan struct{} // closed to leave
	gone  chan struct{} // closed when left
	once  sync.Once
	until context.Context // how long leaving may take; set before leavy is closed

	mu         sync.Mutex // guards what transactions read
	id         string
	generation int32
	slot       int32
	slots      int32
	transactor *Transactor // if there is one, slots are fenced

	committing sync.Mutex  // held while offsets are committed outside a transaction
	bare       bool        // Kafka takes no metadata as long as ours beside an offset; guarded by committing
	over       atomic.Bool // to join anew
	between    atomic.Bool // generations: a join has begun, and none has come to anything since

	tenure context.Context // ends when the group has forgotten us, or we have left; of the member's goroutine
	lost   context.CancelFunc

	nobodys time.Time // since when partitions that this generation gave up have no reader

	joined int32 // the generation that the last join ended with, whether or not it came to anything; -1 before; of the member's goroutine

	began map[string]bool // topics, before this generation

	counts map[string]int // partitions of each topic, as last assigned; of a leader
	leads  bool
}

const (
	protocolName     = "tidemill"
	protocolType     = "consumer"
	rebalanceTimeout = 10 * time.Second // or two sessions: who has died in the middle of joining, kfake waits for as long
	maxNobodys       = 500 * time.Millisecond
	memberIDRequired = kafka.Error(79)
)

func newMember(c *Consumer) *member {
	m := &member{c: c, group: c.b.names.Group(c.opt.Group), wake: make(chan struct{}, 1), leavy: make(chan struct{}),
		gone: make(chan struct{}), generation: -1, slot: -1, joined: -1}
	m.begins()
	return m
}

// begins makes what is read from here on part of a new tenure.
func (m *member) begins() { m.tenure, m.lost = context.WithCancel(m.c.ctx) }

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
	go func() { // a join may wait for others; leaving does not
		select {
		case <-m.leavy:
			cancel()
		case <-ctx.Done():
		}
	}()
	var w backoff
	var again bool
	var err error
	for ctx.Err() == nil || m.overtaken(err) {
		again, err = m.turn(ctx)
		switch {
		case err == nil && again:
			w = backoff{}
		case ctx.Err() != nil:
			_ = w.wait(m.c.ctx)
		case errors.Is(err, errForgotten):
			m.c.b.log.Warn("consumer: the membership failed; leaving unfinished partitions and joining the group again", "group", m.group, "reason", err)
			m.forgotten()
			_ = w.wait(ctx)
		case err != nil && !passing(err) && !errors.Is(err, kafka.Unknown):
			m.c.fail(fmt.Errorf("group %s: %w", m.group, err))
			<-ctx.Done()
		default:
			m.c.b.log.Info("the group cannot be joined yet", "group", m.group, "reason", err)
			_ = w.wait(ctx)
		}
	}
	if isClosed(m.leavy) {
		m.depart(m.until)
	}
	m.lost()
	m.c.drop(func(*inPartition) bool { return true })
}

// turn is one generation.
func (m *member) turn(ctx context.Context) (again bool, err error) {
	m.c.drop(nil) // what a transaction has given up, before it may be assigned here again
	joining, done := m.joining(ctx)
	m.between.Store(true)
	mine, err := m.join(joining)
	done()
	if err != nil {
		return false, err
	}
	m.between.Store(false)
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.nobodys = time.Time{}
	beat := m.heart(hctx, identified{m.id, m.generation})
	if err := m.apply(ctx, mine); err != nil {
		return false, err
	}
	return true, m.steady(ctx, beat)
}

// overtaken tells a leaving member whose last join did not end well, another
// rebalance having begun, that it must join once more to be able to commit.
func (m *member) overtaken(err error) bool {
	return isClosed(m.leavy) && err != nil && passing(err) && m.until.Err() == nil && m.c.ctx.Err() == nil && m.owes()
}

// owes tells whether anything that has been handed out is not committed yet, or
// the hook has still to finish with a partition.
func (m *member) owes() (owes bool) {
	m.c.each(func(p *inPartition) {
		p.mu.Lock()
		defer p.mu.Unlock()
		owes = owes || !p.gone && (p.mark.open() > 0 || p.mark.next > p.committed || m.c.opt.Leaving != nil && p.parting != left)
	})
	return owes
}

// joining is how long a join may take. One who leaves and owes the group
// offsets sees it through: half a join leaves the old generation and does not
// say what the new one is, so that what has ended could no longer be committed.
// One who owes nothing leaves at once, though others be awaited.
func (m *member) joining(ctx context.Context) (context.Context, context.CancelFunc) {
	whole, cancel := context.WithCancel(m.c.ctx)
	stop := context.AfterFunc(ctx, func() {
		if !m.owes() {
			cancel()
		}
	})
	return whole, func() {
		stop()
		cancel()
	}
}

var errForgotten = errors.New("the group has forgotten this member")

// asMembership turns the codes that mean "you are no member" into one error.
func asMembership(err error) error {
	for _, code := range []kafka.Error{kafka.UnknownMemberId, kafka.IllegalGeneration, kafka.FencedInstanceID} {
		if errors.Is(err, code) {
			return fmt.Errorf("%w: %w", errForgotten, err)
		}
	}
	return err
}

// forgotten gives up everything: others may be reading it already.
func (m *member) forgotten() {
	m.lost()
	m.c.drop(func(*inPartition) bool { return true })
	m.begins()
	m.joined = -1
	m.between.Store(false)
	m.mu.Lock()
	m.id, m.generation = "", -1
	m.mu.Unlock()
}

// steady goes on until the generation ends.
func (m *member) steady(ctx context.Context, beat <-chan error) error {
	commits := time.NewTicker(m.c.opt.CommitEvery)
	defer commits.Stop()
	growth := time.NewTicker(m.c.b.growthEvery)
	defer growth.Stop()
	for {
		if drained, err := m.drained(ctx); drained || err != nil {
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
			switch err := m.commit(ctx); {
			case errors.Is(err, errForgotten):
				return err
			case refusedForGood(err):
				m.c.fail(fmt.Errorf("group %s: %w", m.group, err))
			case err != nil && ctx.Err() == nil:
				m.c.b.log.Warn("offsets cannot be committed yet", "group", m.group, "reason", err)
			}
		case <-growth.C:
			m.lookAfter(ctx)
			if m.grown(ctx) {
				return nil
			}
		case <-m.wake:
			if m.over.Swap(false) {
				return nil
			}
		}
	}
}

// startOver makes the member join anew.
func (m *member) startOver() {
	m.over.Store(true)
	m.nudge()
}

// heart beats in its own goroutine, so that nothing that member does for long
// costs it its membership. It says once what ends the generation. After a call
// for a rebalance it goes on: whoever still looks for offsets, or waits for a
// callback, lives.
func (m *member) heart(ctx context.Context, who identified) <-chan error {
	ended := make(chan error, 1)
	m.c.running.Go(func() {
		every := m.c.opt.SessionTimeout / heartbeatsInLife
		for retry.Sleep(ctx, every) == nil {
			err := m.beat(ctx, who)
			forgotten := errors.Is(err, errForgotten)
			if forgotten || errors.Is(err, kafka.RebalanceInProgress) {
				select {
				case ended <- err:
				default: // said already
				}
			}
			if forgotten {
				return
			}
		}
	})
	return ended
}

// identified is a member in one generation.
type identified struct {
	id         string
	generation int32
}

// beat sends one heartbeat. It waits for the answer no longer than leaves time
// for another, or one lost answer would cost the membership.
func (m *member) beat(ctx context.Context, who identified) error {
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
	code, err := wire.ReadHeartbeat(answer)
	if err == nil && code != 0 {
		err = asMembership(kafka.Error(code))
	}
	return err
}

type introduction struct {
	Generation int32 `json:"generation"`
	Slot       int32 `json:"slot"`
	Slots      int32 `json:"slots"`
}

type placement struct {
	Slot  int32    `json:"slot"`
	Slots int32    `json:"slots"`
	Fence []int32  `json:"fence,omitempty"`
	Began []string `json:"began,omitempty"` // topics that the group read before this generation, for who starts at the latest
}

// join joins the group and returns what is ours in the new generation.
func (m *member) join(ctx context.Context) ([]wire.TopicPartition, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer cancel()
	res, err := m.enter(ctx)
	if err != nil {
		return nil, err
	}
	m.joined = int32(res.GenerationID)
	sync := &kafka.SyncGroupRequest{GroupID: m.group, GenerationID: res.GenerationID, MemberID: res.MemberID,
		ProtocolType: protocolType, ProtocolName: protocolName}
	m.leads = res.LeaderID == res.MemberID
	if m.leads {
		if sync.Assignments, err = m.lead(ctx, res); err != nil {
			return nil, err
		}
	}
	got, err := m.sync(ctx, sync)
	if err != nil {
		return nil, err
	}
	return m.placed(ctx, res, &got.Assignment)
}

// sync waits for the leader's word, and beats meanwhile: a leader that has died
// may keep it waiting for longer than a session, and kfake then takes those who
// wait for dead.
func (m *member) sync(ctx context.Context, req *kafka.SyncGroupRequest) (*kafka.SyncGroupResponse, error) {
	hctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.heart(hctx, identified{req.MemberID, int32(req.GenerationID)})
	got, err := m.c.b.patient.SyncGroup(ctx, req)
	if err == nil {
		err = got.Error
	}
	if err != nil {
		return nil, rejoin(asMembership(fmt.Errorf("sync: %w", err)))
	}
	return got, nil
}

// rejoin makes a rebalance that overtook another a passing error.
func rejoin(err error) error {
	if errors.Is(err, kafka.RebalanceInProgress) {
		return errors.Join(kafka.LeaderNotAvailable, err)
	}
	return err
}

func (m *member) enter(ctx context.Context) (*kafka.JoinGroupResponse, error) {
	owned := map[string][]int{}
	m.c.each(func(p *inPartition) { owned[p.tp.Topic] = append(owned[p.tp.Topic], int(p.tp.Partition)) })
	var topics []string
	for _, s := range m.c.opt.Streams {
		topics = append(topics, m.c.b.names.Topic(s))
	}
	self, err := json.Marshal(introduction{m.generation, m.slot, m.slots})
	if err != nil {
		return nil, err
	}
	req := &kafka.JoinGroupRequest{GroupID: m.group, MemberID: m.id, SessionTimeout: m.c.opt.SessionTimeout,
		RebalanceTimeout: min(rebalanceTimeout, 2*m.c.opt.SessionTimeout), ProtocolType: protocolType,
		Protocols: []kafka.GroupProtocol{{Name: protocolName,
			Metadata: kafka.GroupProtocolSubscription{Topics: topics, UserData: self, OwnedPartitions: owned}}}}
	ctx, done := m.awaiting(ctx)
	defer done()
	for {
		res, err := m.c.b.patient.JoinGroup(ctx, req)
		if err == nil && errors.Is(res.Error, memberIDRequired) && req.MemberID == "" {
			req.MemberID = res.MemberID
			m.mu.Lock()
			m.id = res.MemberID // whoever gives up waiting now must leave by this name
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
			return nil, rejoin(asMembership(fmt.Errorf("join: %w", err)))
		}
		return res, nil
	}
}

// awaiting lets a member beat while it waits for the others to join. They may
// take longer than a session, and kfake then takes those who wait for dead and
// never answers them: who hears that waits no longer. That the generation has
// ended is no such word, for it ends with the answer.
func (m *member) awaiting(ctx context.Context) (context.Context, func()) {
	if m.joined < 0 { // not known yet, and so not missed
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	beat := m.heart(ctx, identified{m.id, m.joined})
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
	for topic, parts := range got.AssignedPartitions {
		for _, p := range parts {
			mine = append(mine, wire.TopicPartition{Topic: topic, Partition: int32(p)})
		}
	}
	return mine, nil
}

// fence aborts what the former holder of a slot left open.
func (m *member) fence(ctx context.Context, slot int32) {
	id := m.c.b.names.Transactional(m.c.opt.Group, int(slot))
	ctx, cancel := context.WithTimeout(ctx, m.c.b.transactionTimeout)
	defer cancel()
	t := &transaction{b: m.c.b, id: id}
	if err := t.open(ctx); err != nil && ctx.Err() == nil {
		m.c.b.log.Warn("consumer: fencing a free slot failed; its open transaction will time out", "transaction", id, "reason", err)
	}
}
