package platform

import (
	"cmp"
	"context"
	"os"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/standing"
)

// publishScoring tells gateways how the scorers stand here.
func (p *Platform) publishScoring(ctx context.Context, s *scorers) {
	board := standing.NewScorers(p.redis, p.names, p.kafka)
	telling, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	host, _ := os.Hostname() // without one it is known by its id
	began := time.Now().UTC()
	id := tidemill.ID("scorer", began.String(), host, p.addresses.Kafka)[:8]
	running.Go(func() {
		board.Publish(telling, id, func() standing.Process {
			told := standing.Process{ID: id, Host: cmp.Or(host, id), Began: began, Cache: cacheStanding(s.on.cache.Stats())}
			for _, one := range s.list() {
				told.Scorers = append(told.Scorers, scorerStanding(one.score.Standing()))
			}
			return told
		})
	})
	p.AtStop(Consumers, "the word of how the scorers stand", func(context.Context) error {
		stop()
		running.Wait()
		return nil
	})
}

func cacheStanding(s infer.Stats) standing.Cache {
	return standing.Cache{Models: s.Models, Bytes: s.Bytes, Budget: s.Budget, Hits: s.Hits, Misses: s.Misses, Evicted: s.Evicted}
}

func scorerStanding(s score.Standing) standing.Scorer {
	told := standing.Scorer{Name: s.Name, Events: s.Events, Scored: s.Scored, Passed: s.Passed, Dropped: s.Dropped,
		DeadLettered: s.DeadLettered, Held: s.Held, Skipped: s.Skipped, Aborted: s.Aborted, Rate: s.Rate, Lag: s.Lag, P50: s.P50, P99: s.P99,
		Models: s.Models, LastError: s.LastError, LastErrorAt: s.LastErrorAt}
	for _, swap := range s.Swaps {
		told.Swaps = append(told.Swaps, standing.Swap(swap))
	}
	return told
}
