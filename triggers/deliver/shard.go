package deliver

import (
	"context"
	"sync"
)

// shard is one tenure of a partition: its state and the lock around it. A
// partition that is read anew gets a new shard; what comes back for the old one
// finds it closed.
type shard struct {
	lane *lane
	mu   sync.Mutex
	p    *partition

	ctx   context.Context // of its attempts
	stop  context.CancelFunc
	quiet chan struct{} // closed when it is leaving and nothing is left to do
	send  func(*item)
	paces map[int64]*pace // of acts that replay letters, by offset; the clerk's
}

func newShard(l *lane, p *partition) *shard {
	s := &shard{lane: l, p: p, quiet: make(chan struct{}), send: l.d.send, paces: map[int64]*pace{}}
	s.ctx, s.stop = context.WithCancel(l.life)
	p.home = s
	return s
}

// do changes the partition, and hands on what follows from that.
func (s *shard) do(change func(p *partition, now moment)) {
	s.mu.Lock()
	change(s.p, s.lane.d.clock.now())
	out := s.p.handOut()
	busy, stirred := s.p.busy() || s.p.wanted != nil || len(s.p.kept) > 0, s.p.stirred
	s.p.stirred = false
	if s.p.leaving && !s.p.busy() && !isClosed(s.quiet) {
		close(s.quiet)
	}
	s.mu.Unlock()
	for _, i := range out {
		s.send(i)
	}
	if busy {
		poke(s.lane.work)
	}
	if stirred {
		poke(s.lane.due)
	}
}

// end makes vain what is under way, and returns what it has read and not dealt
// with.
func (s *shard) end() []*slab {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p.close()
	left := append(s.p.window, s.p.backlog...)
	s.p.window, s.p.backlog, s.p.out, s.p.kept = nil, nil, nil, nil
	if !isClosed(s.quiet) {
		close(s.quiet)
	}
	return left
}

// poke wakes who waits on a channel of one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
