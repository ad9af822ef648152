package embedded

import (
	"container/list"
	"net"
	"sync"
	"time"
)

const (
	maxStrangers = 64               // connections of a server whose clients have not logged in
	loginWithin  = 10 * time.Second // time for a login
	// strangerAge is how old a stranger must be before another one may take its place. A login takes
	// milliseconds.
	strangerAge = time.Second
)

// strangers are the connections of a server whose clients have not logged in. Every program of the
// machine can open connections, so the list bounds their number and their time. It works as
// network.Server does: above the limit the oldest stranger is closed if it is older than a second.
// Otherwise the new connection is refused.
type strangers struct {
	mu  sync.Mutex
	all list.List // values are *stranger, the oldest first
}

// stranger is a connection whose client has still to log in.
type stranger struct {
	net.Conn
	in    *strangers
	since time.Time
	entry *list.Element
	late  *time.Timer // closes the connection
}

// enter adds a connection. It returns nil if there is no room for it.
func (s *strangers) enter(c net.Conn) *stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Len() >= maxStrangers {
		oldest := s.all.Front().Value.(*stranger)
		if time.Since(oldest.since) < strangerAge {
			return nil
		}
		oldest.remove()
		_ = oldest.Close()
	}
	v := &stranger{Conn: c, in: s, since: time.Now()}
	v.entry = s.all.PushBack(v)
	v.late = time.AfterFunc(loginWithin, func() {
		v.leave()
		_ = v.Close()
	})
	return v
}

// leave ends the limits of a connection, because its client has logged in or gone. It may be called
// again, and for no stranger.
func (v *stranger) leave() {
	if v == nil {
		return
	}
	v.in.mu.Lock()
	defer v.in.mu.Unlock()
	v.remove()
}

// remove is called with the lock held.
func (v *stranger) remove() {
	v.late.Stop()
	v.in.all.Remove(v.entry) // does nothing the second time
}
