package score

import (
	"context"
	"time"
)

// lookEvery is how often the end of the stream is asked for.
const lookEvery = 2 * time.Second

// look keeps the lag up to date.
func (s *Scorer) look(life context.Context) {
	for life.Err() == nil {
		wait(life, lookEvery)
		s.mu.Lock()
		one := s.session
		s.mu.Unlock()
		if one == nil {
			continue
		}
		if lag, err := one.lag(life); err == nil { // else it is asked again
			s.counts.lag.Store(lag)
		}
	}
}

func (s *session) lag(ctx context.Context) (int64, error) {
	ends, err := s.o.Broker.Ends(ctx, s.conf.From)
	if err != nil {
		return 0, err
	}
	behind := int64(0)
	for _, p := range s.c.Positions() {
		for _, end := range ends {
			if end.Partition == p.Partition {
				behind += max(0, end.Offset-p.Offset)
			}
		}
	}
	return behind, nil
}
