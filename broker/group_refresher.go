package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/describegroups"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/retry"
)

// GroupRefresher protects the install's consumer groups from being forgotten by Kafka. Kafka deletes
// the offsets and notes of a group that has had no members for offsets.retention.minutes, a week by
// default, and a scorer without events has no members.
//
// The refresher joins and leaves each group without members, long before that time is over. That
// starts Kafka's clock again; a commit of offsets would not. The refresher also records the groups'
// offsets, because Kafka forgets them if no refresher runs for that long.
//
// A member that joins at the same moment waits for one more rebalance. The refresher never gets a
// partition, because it names no stream, and never ends a join, so that it holds up no member.
//
// One goroutine uses a refresher at a time.
type GroupRefresher struct {
	b      *Broker
	p      *Producer
	known  groupRecords
	mu     sync.Mutex           // guards joined
	joined map[string]time.Time // time of the last join of each group
	every  time.Duration        // interval between two joins of a group, and between two records of a group with members
	guess  bool                 // whether Kafka has not told its retention yet, so that every is a guess
	ended  func(string) bool    // whether no consumer needs a group any more, so that Kafka may forget it; nil means none
}

const (
	refreshEvery   = time.Minute   // interval between two passes
	refreshTime    = time.Minute   // longest time for one group
	activeEvery    = time.Second   // interval between two looks whether the process is active
	longestAbsence = 6 * time.Hour // longest interval between two joins of a group
	// shareOfRetention is the part of Kafka's retention of offsets after which a group is joined.
	// Several joins may fail before the group is forgotten.
	shareOfRetention = 4
	// defaultOffsetRetention is Kafka's default. It counts if Kafka does not tell its own setting.
	defaultOffsetRetention = 7 * 24 * time.Hour
	refreshWorkers         = 8
)

// GroupRefresher returns a refresher of the install's groups. It joins a group without members at the
// given interval; 0 means as Kafka's retention of offsets demands. The caller closes the refresher.
func (b *Broker) GroupRefresher(ctx context.Context, every time.Duration) (*GroupRefresher, error) {
	p, err := b.Producer(ProducerOptions{})
	if err != nil {
		return nil, fmt.Errorf("refresh the groups: %w", err)
	}
	g := &GroupRefresher{b: b, p: p, joined: map[string]time.Time{}, every: every, guess: every == 0}
	g.learnInterval(ctx)
	return g, nil
}

// learnInterval asks Kafka for its retention, until Kafka has answered once.
func (g *GroupRefresher) learnInterval(ctx context.Context) {
	if g.guess {
		retention, known := g.b.offsetRetention(ctx)
		g.every, g.guess = min(longestAbsence, retention/shareOfRetention), !known
	}
}

// Close closes the refresher's connections.
func (g *GroupRefresher) Close(ctx context.Context) error { return g.p.Close(ctx) }

// Run refreshes the groups until the context ends, while active returns true. Kafka may forget a group for which
// ended returns true, because no consumer needs it any more.
func (g *GroupRefresher) Run(ctx context.Context, active func() bool, ended func(group string) bool) {
	g.ended = ended
	for ctx.Err() == nil {
		if !active() {
			_ = retry.Sleep(ctx, activeEvery)
			continue
		}
		if err := g.Pass(ctx); err != nil && ctx.Err() == nil {
			g.b.log.Warn("controller: refreshing consumer groups failed; retrying", "reason", err)
		}
		_ = retry.Sleep(ctx, min(refreshEvery, g.every/2))
	}
}

// Pass looks at every group once. A group that fails does not keep the others from their turn.
func (g *GroupRefresher) Pass(ctx context.Context) error {
	g.learnInterval(ctx)
	md, err := g.b.metadata(ctx)
	if err != nil {
		return err
	}
	groups, err := g.b.groups(ctx, md.Brokers)
	if err == nil {
		err = g.b.readGroupRecords(ctx, &g.known)
	}
	if err != nil {
		return err
	}
	next := make(chan string, len(groups))
	for _, group := range groups {
		if g.ended == nil || !g.ended(strings.TrimPrefix(group, g.b.names.Group(""))) {
			next <- group
		}
	}
	close(next)
	failed := make(chan error, len(groups))
	var running sync.WaitGroup
	for range min(refreshWorkers, len(groups)) {
		running.Go(func() {
			for group := range next {
				if err := g.refresh(ctx, group); err != nil {
					failed <- fmt.Errorf("group %s: %w", group, err)
				}
			}
		})
	}
	running.Wait()
	close(failed)
	var all []error
	for err := range failed {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// refresh records a group's offsets, and joins the group if it has no members and the time has come.
// A member may join between the look at the group and the final record. Then a second record takes
// back that the first is final, because the member's own record may be between the two.
//
// The time for a group is limited, because a transaction that hangs keeps the group's offsets unstable for ever.
func (g *GroupRefresher) refresh(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	empty, ours, err := g.look(ctx, group)
	if err != nil || !ours {
		return err
	}
	offsets, err := g.b.groupOffsets(ctx, group, nil, empty)
	if err != nil {
		return err
	}
	all := g.due(group, offsets, empty)
	if err := g.b.writeGroupRecords(ctx, g.p, all); err != nil || !empty {
		return err
	}
	if empty, _, err = g.look(ctx, group); err != nil {
		return err
	}
	if !empty {
		for i := range all {
			all[i].Final = false
		}
		return g.b.writeGroupRecords(ctx, g.p, all)
	}
	if !g.isDue(group) {
		return nil
	}
	err = g.joinAndLeave(ctx, group)
	if err == nil {
		g.mu.Lock()
		g.joined[group] = time.Now()
		g.mu.Unlock()
	}
	return err
}

// isDue reports whether a group without members must be joined now.
func (g *GroupRefresher) isDue(group string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.joined[group]) >= g.every
}

// due returns the records to write for a group. A group without members gets a final record of each
// partition. A group with members gets records of later offsets, but not often. Its first note is
// recorded at once, because a scorer needs a note to find its outputs.
func (g *GroupRefresher) due(group string, offsets map[wire.TopicPartition]wire.CommittedOffset, empty bool) []groupRecord {
	name := strings.TrimPrefix(group, g.b.names.Group(""))
	var all []groupRecord
	for tp, o := range offsets {
		stream, ours := g.b.names.Stream(tp.Topic)
		if o.Offset < 0 || !ours {
			continue
		}
		r := groupRecord{Group: name, Stream: stream, Partition: tp.Partition, Offset: o.Offset, Metadata: o.Metadata, Final: empty}
		was, known := g.known.all[name][tp]
		if lifeOf(r.Metadata) == (life{}) { // a person or an earlier version has committed it
			r.Metadata = withLife(r.Metadata, lifeOf(was.Metadata))
		}
		if r.isOfEarlierLife(was) {
			continue
		}
		if !known || !r.same(was) && (empty || was.Final || r.hasNote() && !was.hasNote() || time.Since(was.at) >= g.every) {
			all = append(all, r)
		}
	}
	return all
}

// look reports whether a group has no members, and whether it is one that members join: a group
// without a protocol only stores offsets.
func (g *GroupRefresher) look(ctx context.Context, group string) (empty, ours bool, err error) {
	node, err := g.b.coordinator(ctx, group)
	if err != nil {
		return false, false, err
	}
	res, err := requestServer[*describegroups.Response](ctx, g.b, node, &describegroups.Request{Groups: []string{group}})
	if err != nil {
		return false, false, err
	}
	for _, d := range res.Groups {
		if d.GroupID != group {
			continue
		}
		if err := codeError(d.ErrorCode, ""); err != nil && !isCode(err, kafka.GroupIdNotFound) {
			return false, false, fmt.Errorf("look at its members: %w", err)
		}
		return d.GroupState == "Empty", d.ProtocolType == protocolType && d.GroupState != "Dead", nil
	}
	return false, false, nil
}

// joinAndLeave makes a group's state change, so that the time for which it has had no members starts
// again. The leave has a separate time limit, because a member that does not leave holds up the others.
func (g *GroupRefresher) joinAndLeave(ctx context.Context, group string) (err error) {
	req := &kafka.JoinGroupRequest{GroupID: group, SessionTimeout: defaultSession, RebalanceTimeout: defaultSession, ProtocolType: protocolType,
		Protocols: []kafka.GroupProtocol{{Name: protocolName, Metadata: kafka.GroupProtocolSubscription{}}}}
	joining, done := context.WithTimeout(ctx, 2*rebalanceTimeout)
	defer done()
	for {
		res, err := g.b.patient.JoinGroup(joining, req)
		if err == nil && errors.Is(res.Error, memberIDRequired) && req.MemberID == "" {
			req.MemberID = res.MemberID
			continue
		}
		if err == nil {
			err = res.Error
		}
		if err == nil {
			req.MemberID = res.MemberID
		}
		return errors.Join(named("join", group, err), g.leave(ctx, group, req.MemberID))
	}
}

func (g *GroupRefresher) leave(ctx context.Context, group, member string) error {
	if member == "" {
		return nil
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer done()
	_, err := g.b.client.LeaveGroup(ctx, &kafka.LeaveGroupRequest{GroupID: group, Members: []kafka.LeaveGroupRequestMember{{ID: member}}})
	return named("leave", group, err)
}

// offsetRetention returns for how long Kafka keeps the offsets of a group without members. If Kafka does not tell,
// it is the default.
func (b *Broker) offsetRetention(ctx context.Context) (retention time.Duration, known bool) {
	const setting = "offsets.retention.minutes"
	const resourceServer = 4
	md, err := b.metadata(ctx, b.names.Topic("events"))
	if err != nil || len(md.Brokers) == 0 {
		return defaultOffsetRetention, false
	}
	node := md.Brokers[0].ID
	res, err := requestServer[*describeconfigs.Response](ctx, b, node, &describeconfigs.Request{Resources: []describeconfigs.RequestResource{
		{ResourceType: resourceServer, ResourceName: strconv.Itoa(int(node)), ConfigNames: []string{setting}}}})
	if err != nil {
		return defaultOffsetRetention, false
	}
	for _, r := range res.Resources {
		for _, e := range r.ConfigEntries {
			if minutes, err := strconv.Atoi(e.ConfigValue); e.ConfigName == setting && err == nil && minutes > 0 {
				return time.Duration(minutes) * time.Minute, true
			}
		}
	}
	return defaultOffsetRetention, false
}
