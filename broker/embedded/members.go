package embedded

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kfake looks for dead members of a group by a timer that it starts when it has
// answered them. Whose client dies while its first JoinGroup waits for the
// others gets no answer, hence no timer: it stays for ever and holds its share
// of the partitions, which nobody reads. So we watch who joins and is not heard
// of again, and leave the group in their name.

const lookForDead = 500 * time.Millisecond

// joiners are the members that have asked to join and not been heard of since.
type joiners struct {
	mu      sync.Mutex
	waiting map[joiner]time.Time // until when they may be silent
}

type joiner struct{ group, member string }

// watchJoiners sees every request by which a member shows that it lives. It
// answers none of them.
func watchJoiners(c *kfake.Cluster) *joiners {
	j := &joiners{waiting: map[joiner]time.Time{}}
	for _, key := range []kmsg.Key{kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat} {
		c.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			j.saw(req)
			return nil, nil, false
		})
	}
	return j
}

func (j *joiners) saw(r kmsg.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch req := r.(type) {
	case *kmsg.JoinGroupRequest:
		if req.MemberID != "" {
			// It waits for the others first, and then has its session.
			patience := time.Duration(req.RebalanceTimeoutMillis+req.SessionTimeoutMillis) * time.Millisecond
			j.waiting[joiner{req.Group, req.MemberID}] = time.Now().Add(patience)
		}
	case *kmsg.SyncGroupRequest:
		delete(j.waiting, joiner{req.Group, req.MemberID})
	case *kmsg.HeartbeatRequest:
		delete(j.waiting, joiner{req.Group, req.MemberID})
	}
}

// overdue takes out those that have been silent for too long.
func (j *joiners) overdue(now time.Time) []joiner {
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

// removeDead goes on until the context ends.
func (s *Servers) removeDead(ctx context.Context, j *joiners, log *slog.Logger) {
	t := time.NewTicker(lookForDead)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			for _, who := range j.overdue(now) {
				if err := s.leave(who); err != nil {
					log.Warn("a dead member could not be removed", "group", who.group, "reason", err)
				}
			}
		}
	}
}

// leave leaves a group in a member's name. Kafka's answer does not matter: a
// member that is not there any more is as gone as it should be.
func (s *Servers) leave(who joiner) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.SetVersion(1)
	req.Group, req.MemberID = who.group, who.member
	return askOnce(s.addrs[s.cluster.CoordinatorFor(who.group)], req, kmsg.NewPtrLeaveGroupResponse())
}
