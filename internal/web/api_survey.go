package web

import (
	"context"
	"sync"
	"time"
)

// surveyAge is how long an answer is given again.
const surveyAge = time.Second

// survey shares a look at something among all who ask: it costs Kafka a handful
// of requests a server, and a page that many watch asks all the time.
type survey[T any] struct {
	look   func(context.Context) (T, error)
	within time.Duration // it has to answer

	mu   sync.Mutex
	last *sight[T]
}

// sight is one look. Its fields are set before done is closed.
type sight[T any] struct {
	done  chan struct{}
	at    time.Time
	found T
	err   error
}

// now is how it is, or was a second ago. Whoever looks first looks for the
// others too, so his going away does not end it.
func (s *survey[T]) now(ctx context.Context) (none T, err error) {
	found, mine := s.sight()
	if mine {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within)
		defer cancel()
		found.found, found.err = s.look(limited)
		found.at = time.Now()
		close(found.done)
	}
	select {
	case <-found.done:
		return found.found, found.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// sight is the look to wait for; mine if the caller is to take it.
func (s *survey[T]) sight() (found *sight[T], mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old() {
		s.last = &sight[T]{done: make(chan struct{})}
		return s.last, true
	}
	return s.last, false
}

func (s *sight[T]) old() bool {
	select {
	case <-s.done:
		return time.Since(s.at) >= surveyAge
	default:
		return false
	}
}
