package embedded

import (
	"math"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A member that dies while it waits to join is removed after a while.
func TestDeadJoinerLeaves(t *testing.T) {
	s := start(t, Options{})
	living, joined := joinAlone(t, s.Kafka())

	dead := joinRequest(time.Second)
	requestOnce(t, s.Kafka(), dead, joined)
	dead.MemberID = joined.MemberID
	joins := s.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Count: -1, Observe: true,
		When: func(r kmsg.Request) bool { return r.(*kmsg.JoinGroupRequest).MemberID == dead.MemberID }})
	conn, err := net.Dial("tcp", s.Kafka())
	must(t, err)
	_, err = conn.Write(kmsg.NewRequestFormatter().AppendRequest(nil, dead, 1))
	must(t, err)
	must(t, joins.Wait(t.Context(), 1))
	must(t, conn.Close())
	waitEffect(t, "the server sees it go", func() bool { return s.doors[0].openConns() == 0 })
	requestOnce(t, s.Kafka(), living, joined)
	syncAs(t, s.Kafka(), joined)

	waitEffect(t, "the dead one has left", func() bool {
		beat := kmsg.NewPtrHeartbeatRequest()
		beat.SetVersion(3)
		beat.Group, beat.MemberID, beat.Generation = "g", living.MemberID, joined.Generation
		requestOnce(t, s.Kafka(), beat, kmsg.NewPtrHeartbeatResponse())
		return len(s.Cluster().GroupInfo("g").Members) == 1
	})
}

// After a start the members of a group join again, because others of them may be gone.
func TestMembersJoinAgainAfterAStart(t *testing.T) {
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	member, joined := joinAlone(t, s.Kafka())
	must(t, s.Close())

	s = start(t, Options{Dir: dir})
	beat, answer := kmsg.NewPtrHeartbeatRequest(), kmsg.NewPtrHeartbeatResponse()
	beat.SetVersion(3)
	beat.Group, beat.MemberID, beat.Generation = "g", joined.MemberID, joined.Generation
	requestOnce(t, s.Kafka(), beat, answer)
	if answer.ErrorCode != kerr.RebalanceInProgress.Code {
		t.Errorf("its heartbeat gets %d, not that it is to join", answer.ErrorCode)
	}
	requestOnce(t, s.Kafka(), member, joined)
	if joined.ErrorCode != 0 || joined.MemberID != member.MemberID {
		t.Errorf("it joins as %q with %d", joined.MemberID, joined.ErrorCode)
	}
}

// The file of an orderly end also has the open transactions, so a start that cannot write it leaves it whole.
func TestAStartThatCannotCallTheMembers(t *testing.T) {
	dir := t.TempDir()
	file, whole := filepath.Join(dir, sessionFile), []byte(`{"classicGroups":{"g":{"state":1}},"inProgressTxns":[{"pid":7}]}`)
	must(t, os.WriteFile(file, whole, 0o600))
	must(t, os.Mkdir(file+".tmp", 0o700))
	if err := callMembers(dir); err == nil {
		t.Error("no error")
	}
	if left, err := os.ReadFile(file); err != nil || string(left) != string(whole) {
		t.Errorf("it has %s, %v", left, err)
	}
	must(t, os.Remove(file+".tmp"))
	must(t, callMembers(dir))
	if left, err := os.ReadFile(file); err != nil || string(left) != `{"classicGroups":{"g":{"state":2}},"inProgressTxns":[{"pid":7}]}` {
		t.Errorf("it has %s, %v", left, err)
	}
}

// joinAlone joins a group without other members.
func joinAlone(t *testing.T, addr string) (*kmsg.JoinGroupRequest, *kmsg.JoinGroupResponse) {
	t.Helper()
	req, joined := joinRequest(2*time.Minute), kmsg.NewPtrJoinGroupResponse()
	requestOnce(t, addr, req, joined)
	req.MemberID = joined.MemberID
	requestOnce(t, addr, req, joined)
	syncAs(t, addr, joined)
	return req, joined
}

// openConns returns the number of open connections.
func (d *brokerListener) openConns() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// joinRequest makes a JoinGroup whose rebalance timeout equals the session timeout.
func joinRequest(session time.Duration) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.SetVersion(5)
	req.Group, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = "g", "consumer", int32(session.Milliseconds()), int32(session.Milliseconds())
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name = "p"
	req.Protocols = append(req.Protocols, p)
	return req
}

// syncAs sends a SyncGroup as a leader that assigns no partitions.
func syncAs(t *testing.T, addr string, joined *kmsg.JoinGroupResponse) {
	t.Helper()
	req := kmsg.NewPtrSyncGroupRequest()
	req.SetVersion(3)
	req.Group, req.MemberID, req.Generation = "g", joined.MemberID, joined.Generation
	resp := kmsg.NewPtrSyncGroupResponse()
	requestOnce(t, addr, req, resp)
	if resp.ErrorCode != 0 {
		t.Fatal("sync:", resp.ErrorCode)
	}
}

// A member that gives up waiting after three rebalance timeouts and joins again is not removed before.
func TestAPatientJoinerStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &silentJoiners{waiting: map[joiner]time.Time{}}
		req := joinRequest(6 * time.Second)
		req.MemberID, req.RebalanceTimeoutMillis = "m", 10_000
		j.saw(req)
		time.Sleep(31 * time.Second)
		if gone := j.takeOverdue(time.Now()); len(gone) > 0 {
			t.Errorf("removed: %v", gone)
		}
		j.saw(req)
		time.Sleep(37 * time.Second)
		if gone := j.takeOverdue(time.Now()); len(gone) != 1 {
			t.Errorf("a dead one stays: %v", gone)
		}
	})
}

// Clients of other programs set the largest rebalance timeout if their work takes long.
func TestAJoinerWithTheLargestTimeoutStays(t *testing.T) {
	j := &silentJoiners{waiting: map[joiner]time.Time{}}
	req := joinRequest(45 * time.Second)
	req.MemberID, req.RebalanceTimeoutMillis = "m", math.MaxInt32
	j.saw(req)
	if gone := j.takeOverdue(time.Now().Add(24 * time.Hour)); len(gone) > 0 {
		t.Errorf("removed: %v", gone)
	}
}
