package web

import (
	"context"
	"sync"
	"time"

	"tidemill.dev/broker"
)

// surveyAge is how long an answer is given again.
const surveyAge = time.Second

// survey shares a look at the streams among all who ask: it costs Kafka a
// handful of requests a server, and a page that many watch asks all the time.
type survey struct {
	look   func(context.Context) ([]broker.StreamInfo, error)
	within time.Duration // it has to answer

	mu   sync.Mutex
	last *sight
}

// sight is one look. Its fields are set before done is closed.
type sight struct {
	done  chan struct{}
	at    time.Time
	infos []broker.StreamInfo
	err   error
}

// streams is how the streams are, or were a second ago. Whoever looks first
// looks for the others too, so his going away does not end it.
func (s *survey) streams(ctx context.Context) ([]broker.StreamInfo, error) {
	found, mine := s.sight()
	if mine {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.within)
		defer cancel()
		found.infos, found.err = s.look(limited)
		found.at = time.Now()
		close(found.done)
	}
	select {
	case <-found.done:
		return found.infos, found.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// sight is the look to wait for; mine if the caller is to take it.
func (s *survey) sight() (found *sight, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.old() {
		s.last = &sight{done: make(chan struct{})}
		return s.last, true
	}
	return s.last, false
}

func (s *sight) old() bool {
	select {
	case <-s.done:
		return time.Since(s.at) >= surveyAge
	default:
		return false
	}
}
