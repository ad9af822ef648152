package runs

import "sync"

// underWay are the attempts that this process is about to launch: the log may
// have begun them while their launcher has not, and they are not lost.
type underWay struct {
	mu    sync.Mutex
	names map[string]int // several may try the same
}

// enter notes one until leave is called.
func (u *underWay) enter(name string) (leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == nil {
		u.names = map[string]int{}
	}
	u.names[name]++
	return func() { u.leave(name) }
}

func (u *underWay) leave(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names[name]--; u.names[name] == 0 {
		delete(u.names, name)
	}
}

func (u *underWay) has(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names[name] > 0
}
