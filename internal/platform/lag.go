package platform

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/kube"
)

// lags tell how far scorers are behind, of which nobody may be running.
type lags struct {
	p *Platform

	mu   sync.Mutex
	seen map[string]grown // by scorer
}

// grown is how long a stream was, and when it was first seen to be.
type grown struct {
	events int64
	at     time.Time
}

// of asks Kafka. What a scorer holds because its models cannot be loaded lies
// behind what it has committed; the notes beside that tell of it.
func (l *lags) of(ctx context.Context, s config.Scorer) (kube.Lag, error) {
	ends, err := l.p.broker.Ends(ctx, s.From)
	if err != nil {
		return kube.Lag{}, fmt.Errorf("ask how far the scorer %s is behind: %w", s.Name, err)
	}
	committed, err := l.p.broker.Committed(ctx, score.Group(s.Name), ends)
	if err != nil {
		return kube.Lag{}, fmt.Errorf("ask how far the scorer %s has come: %w", s.Name, err)
	}
	lag := kube.Lag{Newest: l.grew(s.Name, ends, time.Now()), Partitions: len(ends)}
	if lag.Behind, err = l.behind(ctx, s, ends, committed); err != nil || lag.Behind > 0 {
		return lag, err
	}
	if lag.Held, err = l.held(ctx, s.Name, committed); err == nil && lag.Held {
		lag.Models, err = l.p.works.ledger.ModelsMark(ctx)
	}
	return lag, err
}

func (l *lags) grew(scorer string, ends []broker.Position, now time.Time) time.Time {
	sum := int64(0)
	for _, e := range ends {
		sum += e.Offset
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, known := l.seen[scorer]; !known || before.events != sum {
		l.seen[scorer] = grown{sum, now}
	}
	return l.seen[scorer].at
}

// behind adds up what is not committed.
func (l *lags) behind(ctx context.Context, s config.Scorer, ends, committed []broker.Position) (_ int64, err error) {
	var begins []broker.Position // asked only where it has to be known
	sum := int64(0)
	for i, c := range committed {
		from := c.Offset
		if from < 0 && s.Latest {
			sum++ // it has to be started once, for the stream's end of then is where it begins
			continue
		}
		if from < 0 && begins == nil {
			if begins, err = l.p.broker.Places(ctx, s.From, broker.Earliest()); err != nil {
				return 0, fmt.Errorf("ask where the scorer %s begins: %w", s.Name, err)
			}
		}
		if from < 0 && i < len(begins) {
			from = begins[i].Offset
		}
		sum += max(0, ends[i].Offset-max(from, 0))
	}
	return sum, nil
}

// held reports whether events are parked until their models come.
func (l *lags) held(ctx context.Context, scorer string, committed []broker.Position) (bool, error) {
	parked, err := l.p.broker.Ends(ctx, tidemill.ScorerParked(scorer))
	if err != nil {
		return false, fmt.Errorf("ask what the scorer %s holds: %w", scorer, err)
	}
	for i := 0; i < min(len(parked), len(committed)); i++ {
		waits, err := score.Waits(committed[i].Note, parked[i].Offset)
		if waits || err != nil {
			return waits, err
		}
	}
	return false, nil
}
