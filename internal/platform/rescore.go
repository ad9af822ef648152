package platform

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/web"
)

// rescoreFor is how long one request works before it answers.
const rescoreFor = 2 * time.Second

var errEnough = errors.New("enough for one answer")

// rescore scores some of a scorer's stream once more.
func (p *Platform) rescore(ctx context.Context, c config.Scorer, ask api.RescoreAsk, ranges []tidemill.Range) (api.Rescored, error) {
	m, err := p.modelsOf(ctx, c)
	if err != nil {
		return api.Rescored{}, fmt.Errorf("ask the scorer %s: %w", c.Name, err)
	}
	on, err := p.openScoring(ctx)
	if err != nil {
		return api.Rescored{}, fmt.Errorf("ask the scorer %s: %w", c.Name, err)
	}
	began := time.Now()
	done, err := score.Rescore(ctx, score.Rescoring{Broker: p.broker, Names: p.names, Config: c, Champions: on.champions, Models: m,
		Ranges: ranges, Version: ask.Version, Stream: ask.ToStream, Resume: ask.Resume,
		Told: func(score.Rescored) error {
			if time.Since(began) > rescoreFor {
				return errEnough
			}
			return nil
		}})
	switch {
	case errors.Is(err, score.ErrRescore):
		return api.Rescored{}, &web.Unanswered{Err: err}
	case err != nil && !errors.Is(err, errEnough):
		return api.Rescored{}, err
	}
	told := api.Rescored(done)
	if told.Reasons == nil {
		told.Reasons = map[string]string{}
	}
	return told, nil
}
