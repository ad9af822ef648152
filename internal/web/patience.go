package web

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errNoRoom is the cause of a context of patience that has ended.
var errNoRoom = errors.New("no room among the events that Kafka has yet to acknowledge")

// patience hands out contexts that end after a while. One serves all requests
// of a tenth of that while: hardly any ever waits for it, and a context of its
// own would cost each of them more than all else about the wait.
type patience struct {
	while time.Duration

	mu    sync.Mutex
	now   context.Context
	until time.Time // it is handed out
}

// context ends after the while, or up to a tenth of it earlier.
func (p *patience) context() context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.After(p.until) {
		ctx, end := context.WithTimeoutCause(context.Background(), p.while, errNoRoom)
		context.AfterFunc(ctx, end) // not before: whoever waits, waits for all of it
		p.now, p.until = ctx, now.Add(p.while/10)
	}
	return p.now
}
