package platform

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/scoring/oip"
	"tidemill.dev/internal/scoring/oip/rest"
	"tidemill.dev/internal/scoring/serving"
	"tidemill.dev/triggers/deadletters"
)

// requestModels holds the models for single requests, by engine. Scorers have their own models,
// which write a fact if a champion cannot be loaded. A single request gets that error in its
// answer.
type requestModels struct {
	mu  sync.Mutex
	all map[string]*serving.Models
}

// openWithin limits the wait of the first request, which opens the models.
const openWithin = 30 * time.Second

// modelsOf returns the models of an engine, and opens them at the first call.
func (a *requestModels) modelsOf(p *Platform, on *scoringModels, engine string) (*serving.Models, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.all[engine]; m != nil {
		return m, nil
	}
	m, err := serving.Open(serving.Options{Cache: on.cache, Champions: on.champions, Engine: engine, Logger: p.log,
		Unloadable: func(model string, version, kept int, reason error) {
			p.log.Warn("gateway: loading a champion failed; the previous one answers, if there is one", "model", model, "version", version, "reason", reason)
		}})
	if err != nil {
		return nil, err
	}
	if a.all == nil {
		a.all = map[string]*serving.Models{}
	}
	a.all[engine] = m
	on.listeners.add(m)
	return m, nil
}

func (a *requestModels) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, m := range a.all {
		errs = append(errs, m.Close())
	}
	clear(a.all)
	return errors.Join(errs...)
}

// scoreOnce scores one event that is on no stream with a scorer's champion. The first call opens
// the models.
func (p *Platform) scoreOnce(ctx context.Context, c config.Scorer, v *broker.View) (api.ScoreDone, error) {
	m, err := p.modelsOf(ctx, c)
	if err != nil {
		return api.ScoreDone{}, fmt.Errorf("ask the scorer %s: %w", c.Name, err)
	}
	r, err := score.Once(ctx, c, m, v)
	if err != nil {
		return api.ScoreDone{}, toGatewayError(err)
	}
	return api.ScoreDone{Model: r.Model, Version: r.Version, Label: r.Label, Score: r.Score, Scores: r.Scores, Values: r.Values}, nil
}

// toGatewayError turns an error of scoring into the gateway's error.
func toGatewayError(err error) error {
	if none := errors.Is(err, score.ErrNoModel); none || errors.Is(err, score.ErrUnscorable) {
		return &gateway.Unanswered{NoChampion: none, Err: err}
	}
	return err
}

// canScore reports whether the process can find models.
func (p *Platform) canScore() bool {
	return p.works != nil || p.redis != nil && p.addresses.Store != ""
}

// modelsOf returns the models for single requests. They share a cache with the scorers of this
// process, so that each model is in memory once.
func (p *Platform) modelsOf(ctx context.Context, c config.Scorer) (*serving.Models, error) {
	on := p.openedScoring()
	if on == nil {
		opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), openWithin) // later requests use the models too
		defer cancel()
		var err error
		if on, err = p.openScoring(opening); err != nil {
			return nil, err
		}
	}
	return on.asked.modelsOf(p, on, c.Engine)
}

// inferenceServer returns the server of the Open Inference Protocol, in which clients ask for a model
// by its name. Models are loaded by the config's engine.
func (p *Platform) inferenceServer() *oip.Server {
	return oip.New(oip.Options{Version: p.version,
		Models: func(ctx context.Context) (*serving.Models, error) {
			return p.modelsOf(ctx, config.Scorer{Engine: p.Config().Engine})
		},
		Ready: func(ctx context.Context) bool { return p.Ready(ctx).Status != api.Failed }})
}

// inferenceHandler returns the handler of the protocol over HTTP.
func (p *Platform) inferenceHandler() *rest.Handler {
	return rest.New(rest.Options{Server: p.inferenceServer()})
}

// rescoreFor is the working time of one request before it answers.
const rescoreFor = 2 * time.Second

var errEnough = errors.New("enough for one answer")

// rescorePart scores a part of a scorer's stream again.
func (p *Platform) rescorePart(ctx context.Context, c config.Scorer, ask api.RescoreAsk, ranges []tidemill.Range) (api.Rescored, error) {
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
		return api.Rescored{}, &gateway.Unanswered{Err: err}
	case err != nil && !errors.Is(err, errEnough):
		return api.Rescored{}, err
	}
	told := api.Rescored{ID: done.ID, Records: done.Records, Left: done.Left, Scored: done.Scored, Passed: done.Passed, Skipped: done.Skipped,
		Unscored: done.Unscored, Deleted: done.Deleted, Reasons: done.Reasons}
	if told.Reasons == nil {
		told.Reasons = map[string]string{}
	}
	return told, nil
}

// replayLetters scores the events of a scorer's dead letters.
func (p *Platform) replayLetters(ctx context.Context, c config.Scorer, letters []deadletters.Entry, by string) ([]string, map[string]string, error) {
	m, err := p.modelsOf(ctx, c)
	if err != nil {
		return nil, nil, fmt.Errorf("ask the scorer %s: %w", c.Name, err)
	}
	done, err := score.Replay(ctx, score.Replaying{Broker: p.broker, Names: p.names, Config: c, Models: m, Letters: letters, By: by})
	return done.Letters, done.Failed, err
}
