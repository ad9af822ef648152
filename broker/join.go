package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker/internal/wire"
)

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
		m.c.b.log.Warn("a slot that nobody holds could not be fenced; its open transaction will time out", "transaction", id, "reason", err)
	}
}
