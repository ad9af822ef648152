package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/broker/network"
)

// After a kill, kfake treats open transactions as aborted but writes no abort markers. This has two
// consequences. First, a reader that knows of the abort waits for the marker. Until then it drops
// later committed records of the producer, because the same transactional id gets the same producer
// id again. Second, after another kill, the replay assigns the marker of a later commit to the open
// transaction, so that aborted records become visible. So the abort markers are written here,
// before clients are served.
//
// This needs a second start of kfake, after the first start has closed in order. Only then are the
// epochs stored by which kfake fences the producers of those transactions. Otherwise kfake would
// report success for commits of those producers.

// openTransaction is an open transaction of one producer in one partition.
type openTransaction struct {
	pid       int64
	epoch     int16
	topic     string
	partition int32
}

// openTransactions finds the transactions that have no end marker.
func openTransactions(dir string) ([]openTransaction, error) {
	partitions, err := os.ReadDir(filepath.Join(dir, "partitions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []openTransaction
	for _, p := range partitions {
		some, err := openIn(filepath.Join(dir, "partitions", p.Name()))
		if err != nil {
			return nil, fmt.Errorf("find open transactions in partition %s: %w", p.Name(), err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func openIn(dir string) ([]openTransaction, error) {
	topic, partition, err := partitionOf(filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	high, err := highWatermark(dir)
	if err != nil {
		return nil, err
	}
	epochs := map[int64]int16{}
	for _, segment := range logSegments(dir) {
		if err := eachHead(segment, high, func(head [batchHead]byte, _ int64) { trackTransactions(head, epochs) }); err != nil {
			return nil, err
		}
	}
	var all []openTransaction
	for pid, epoch := range epochs {
		all = append(all, openTransaction{pid, epoch, topic, partition})
	}
	return all, nil
}

// trackTransactions records in open which producers have an open transaction.
func trackTransactions(head [batchHead]byte, open map[int64]int16) {
	const transactional, control = 1 << 4, 1 << 5
	attributes := binary.BigEndian.Uint16(head[21:])
	pid := int64(binary.BigEndian.Uint64(head[43:]))
	switch {
	case attributes&control != 0:
		delete(open, pid)
	case attributes&transactional != 0:
		open[pid] = int16(binary.BigEndian.Uint16(head[51:]))
	}
}

// abortOpen writes the abort markers.
func (o Options) abortOpen(addr string, open []openTransaction) error {
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.SetVersion(1)
	for _, t := range open {
		topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
		topic.Topic, topic.Partitions = t.topic, []int32{t.partition}
		marker := kmsg.NewWriteTxnMarkersRequestMarker()
		marker.ProducerID, marker.ProducerEpoch = t.pid, t.epoch
		marker.Topics = append(marker.Topics, topic)
		req.Markers = append(req.Markers, marker)
	}
	resp := kmsg.NewPtrWriteTxnMarkersResponse()
	if err := askOnce(o.Network, addr, o.inside, req, resp); err != nil {
		return fmt.Errorf("abort %d transactions that a kill left open: %w", len(open), err)
	}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					return fmt.Errorf("abort the transaction of producer %d in %s-%d: %w", m.ProducerID, t.Topic, p.Partition, err)
				}
			}
		}
	}
	return nil
}

const askLimit = 30 * time.Second

// askOnce sends one request on a new connection, as a user.
func askOnce(over network.Network, addr string, as User, req kmsg.Request, resp kmsg.Response) error {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	conn, err := over.Dialer(net.Dialer{})(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askLimit)); err != nil {
		return err
	}
	if err := as.logIn(ctx, conn); err != nil {
		return err
	}
	return roundTrip(conn, req, resp)
}

// roundTrip sends one request and reads its answer.
func roundTrip(conn net.Conn, req kmsg.Request, resp kmsg.Response) error {
	if _, err := conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	resp.SetVersion(req.GetVersion())
	body = body[4:] // skips the correlation id
	if req.IsFlexible() {
		body = body[1:] // skips the empty tags
	}
	return resp.ReadFrom(body)
}

// shareFetches works around a fault in kfake. If a fetch reaches the request's size limit within a
// partition, kfake returns the records read so far without the list of aborted transactions, and a
// reader of committed events takes their records for committed. At a partition's own limit kfake
// returns the list. So the request's limit is divided among its partitions.
func shareFetches(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		shareRoom(req.(*kmsg.FetchRequest))
		return nil, nil, false
	})
}

func shareRoom(req *kmsg.FetchRequest) {
	partitions := int32(0)
	for _, t := range req.Topics {
		partitions += int32(len(t.Partitions))
	}
	share := req.MaxBytes / max(partitions, 1)
	for _, t := range req.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			p.PartitionMaxBytes = min(p.PartitionMaxBytes, share)
		}
	}
	req.MaxBytes = math.MaxInt32
}

// kfake finds dead members of a group by a timer that it starts with its answer to a member. If a
// client dies while its first JoinGroup waits for other members, there is no answer and no timer.
// The member stays for ever, and its share of the partitions is not read. So we track members that
// join and then stop sending requests, and send LeaveGroup for them.

const lookForDead = 500 * time.Millisecond

// silentJoiners are members that sent a JoinGroup and no request after it.
type silentJoiners struct {
	mu      sync.Mutex
	waiting map[joiner]time.Time // time until which each member may be silent
}

type joiner struct{ group, member string }

// watchJoiners sees every request that shows that a member is alive, and leaves the
// answer to kfake.
func watchJoiners(c *kfake.Cluster) *silentJoiners {
	j := &silentJoiners{waiting: map[joiner]time.Time{}}
	for _, key := range []kmsg.Key{kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat} {
		c.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			j.saw(req)
			return nil, nil, false
		})
	}
	return j
}

func (j *silentJoiners) saw(r kmsg.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch req := r.(type) {
	case *kmsg.JoinGroupRequest:
		if req.MemberID != "" {
			// The member first waits for the others and then has its session timeout. Each member that
			// comes or goes makes kfake's wait for the others begin anew. A member that lives must
			// therefore stay until it gives up and joins again: with all of them in the group the wait
			// ends at once, and without them it may never end.
			patience := (3*time.Duration(req.RebalanceTimeoutMillis) + time.Duration(req.SessionTimeoutMillis)) * time.Millisecond
			j.waiting[joiner{req.Group, req.MemberID}] = time.Now().Add(patience)
		}
	case *kmsg.SyncGroupRequest:
		delete(j.waiting, joiner{req.Group, req.MemberID})
	case *kmsg.HeartbeatRequest:
		delete(j.waiting, joiner{req.Group, req.MemberID})
	}
}

// takeOverdue removes and returns the members that have been silent for too long.
func (j *silentJoiners) takeOverdue(now time.Time) []joiner {
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []joiner
	for who, until := range j.waiting {
		if now.After(until) {
			all = append(all, who)
			delete(j.waiting, who)
		}
	}
	return all
}

// removeDead removes dead members until the context ends.
func (s *Servers) removeDead(ctx context.Context, j *silentJoiners, log *slog.Logger) {
	t := time.NewTicker(lookForDead)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, who := range j.takeOverdue(now) {
				if err := s.leaveGroup(who); err != nil {
					log.Warn("kafka: removing a dead member failed; its group waits for the session to time out", "group", who.group, "reason", err)
				}
			}
		}
	}
}

// leaveGroup sends a LeaveGroup for a member. The code in the answer does not matter: an
// unknown member is already gone.
func (s *Servers) leaveGroup(who joiner) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.SetVersion(1)
	req.Group, req.MemberID = who.group, who.member
	return askOnce(s.network, s.addrs[s.cluster.CoordinatorFor(who.group)], s.inside, req, kmsg.NewPtrLeaveGroupResponse())
}
