//go:build slow

package crash

import (
	"fmt"
	"sync"
)

// point is a write, and the fault that happens there.
type point struct {
	server string // server to which the process writes: kafka, redis or store
	number int    // number of the server's write, from 1; 0 is no write
	when   moment
	kill   bool // the process is killed; otherwise only Redis is flushed
	flush  bool
}

func (p point) String() string {
	what := "flush"
	switch {
	case p.kill && p.flush:
		what = "kill and flush"
	case p.kill:
		what = "kill"
	}
	return fmt.Sprintf("%s %s write %d of %s", what, p.when, p.number, p.server)
}

// servers are the servers to which the process writes.
var servers = []string{"kafka", "redis", "store"}

// points returns all points for these numbers of writes.
func points(writes map[string]int) (all []point) {
	for _, server := range servers {
		for n := 1; n <= writes[server]; n++ {
			for _, when := range []moment{before, after} {
				all = append(all, point{server, n, when, true, false}, point{server, n, when, true, true}, point{server, n, when, false, true})
			}
		}
	}
	return all
}

// trap counts the writes until its point is reached.
type trap struct {
	at     point
	spring func() // causes the fault, and returns afterwards

	mu     sync.Mutex
	armed  bool
	sprung bool
	counts map[string]int
	names  map[string][]string // names of the writes
}

func newTrap(at point, spring func()) *trap {
	return &trap{at: at, spring: spring, counts: map[string]int{}, names: map[string][]string{}}
}

// arm starts the counting.
func (t *trap) arm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = true
}

func (t *trap) disarm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = false
}

func (t *trap) hasSprung() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sprung
}

// mayPass counts a server's write, causes the fault at the point, and reports whether the write may
// go on.
func (t *trap) mayPass(server, write string, when moment) bool {
	t.mu.Lock()
	if !t.armed || t.sprung {
		defer t.mu.Unlock()
		return !t.isDead()
	}
	if when == before {
		t.counts[server]++
		t.names[server] = append(t.names[server], write)
	}
	// More writes may have begun by the time at which the wanted one has an answer.
	hit := t.at.server == server && t.at.when == when && t.counts[server] >= t.at.number
	t.sprung = t.sprung || hit
	t.mu.Unlock()
	if hit {
		t.spring()
	}
	return !hit || !t.at.kill
}

// isDead reports whether the process has been killed; all its further writes are dropped.
func (t *trap) isDead() bool { return t.sprung && t.at.kill && t.armed }
