package access

import (
	"sync"
	"time"
)

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// pause keeps attempts apart: after one that failed, the next must wait, twice
// as long each time.
type pause struct {
	mu    sync.Mutex
	err   error // why the last attempt failed; nil if it did not
	at    time.Time
	until time.Time
	wait  time.Duration
}

// fault is why no attempt may be made now; nil if one may.
func (p *pause) fault(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.err
	}
	return nil
}

// recent is why the last attempt failed, if it was of late: who has not tried
// again cannot say that it would fail still.
func (p *pause) recent(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.at) > 2*maxPause {
		return nil
	}
	return p.err
}

func (p *pause) note(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at = err, now
	if err == nil {
		p.until, p.wait = time.Time{}, 0
		return
	}
	p.wait = min(max(2*p.wait, firstPause), maxPause)
	p.until = now.Add(p.wait)
}
