package remote

import (
	"context"
	"sync"

	"tidemill.dev/internal/tail"
)

// What waits for Next. A reader that pauses, as one before a pager does, must
// not have the stream gather in memory: the gateway is to wait instead.
const (
	waitingEvents = 1024
	waitingBytes  = 16 << 20 // but always one event, however large
)

// queue is what has come and not been asked for. One goroutine puts, one takes.
type queue struct {
	came, room chan struct{} // something has changed for who takes, or puts

	mu    sync.Mutex
	all   []news
	bytes int
	err   error // why nothing more will come
}

// news is an event, or a change of the gateway's being there.
type news struct {
	event tail.Event
	size  int // bytes of the event, as it was sent
	away  error
	turn  bool // away, or back if away is nil
}

func newQueue() *queue {
	return &queue{came: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put waits for room, until the context ends.
func (q *queue) put(ctx context.Context, n news) {
	for !q.add(n) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return
		}
	}
	wake(q.came)
}

func (q *queue) add(n news) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) > 0 && (len(q.all) == waitingEvents || q.bytes+n.size > waitingBytes) {
		return false
	}
	q.all, q.bytes = append(q.all, n), q.bytes+n.size
	return true
}

// end says that nothing more comes, and why.
func (q *queue) end(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	wake(q.came)
}

// take waits for what has come, all of it. The error comes behind the last.
func (q *queue) take(ctx context.Context) ([]news, error) {
	for {
		if all, err := q.remove(); len(all) > 0 || err != nil {
			return all, err
		}
		select {
		case <-q.came:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (q *queue) remove() ([]news, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) == 0 {
		return nil, q.err
	}
	all := q.all
	q.all, q.bytes = nil, 0
	wake(q.room)
	return all, nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has been told already
	}
}
