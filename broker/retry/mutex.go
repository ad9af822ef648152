package retry

import "sync"

// Mutex is a lock whose holder may wait for the network. In a testing/synctest bubble, time moves on
// while goroutines wait for a Mutex; while they wait for a sync.Mutex it stands still, and the
// holder's wait would never end. The zero value is unlocked.
type Mutex struct {
	once sync.Once
	held chan struct{} // full while the lock is held
}

// Lock waits until the lock is free.
func (m *Mutex) Lock() {
	m.once.Do(func() { m.held = make(chan struct{}, 1) })
	m.held <- struct{}{}
}

// Unlock lets the next goroutine in.
func (m *Mutex) Unlock() { <-m.held }
