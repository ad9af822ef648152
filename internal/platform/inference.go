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
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/oip"
	"tidemill.dev/internal/scoring/serving"
)

// asked are the models of which single answers are wanted, by engine. The
// scorers have their own, which tell the facts of a champion that cannot be
// loaded; who asks is told so in the answer.
type asked struct {
	mu  sync.Mutex
	all map[string]*serving.Models
}

// openWithin bounds what the first who asks waits for.
const openWithin = 30 * time.Second

// of opens the models of an engine once.
func (a *asked) of(p *Platform, on *scoring, engine string) (*serving.Models, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.all[engine]; m != nil {
		return m, nil
	}
	m, err := serving.Open(serving.Options{Cache: on.cache, Champions: on.champions, Engine: engine, Logger: p.log,
		Unloadable: func(model string, version, kept int, reason error) {
			p.log.Warn("a champion that was asked for cannot be loaded", "model", model, "version", version, "reason", reason)
		}})
	if err != nil {
		return nil, err
	}
	if a.all == nil {
		a.all = map[string]*serving.Models{}
	}
	a.all[engine] = m
	on.ears.add(m)
	return m, nil
}

func (a *asked) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, m := range a.all {
		errs = append(errs, m.Close())
	}
	clear(a.all)
	return errors.Join(errs...)
}

// scoreOnce has a scorer's champion answer for one event that is on no stream.
// What it needs is opened by the first who asks.
func (p *Platform) scoreOnce(ctx context.Context, c config.Scorer, v *broker.View) (api.ScoreDone, error) {
	m, err := p.modelsOf(ctx, c)
	if err != nil {
		return api.ScoreDone{}, fmt.Errorf("ask the scorer %s: %w", c.Name, err)
	}
	r, err := score.Once(ctx, c, m, v)
	if err != nil {
		return api.ScoreDone{}, unanswered(err)
	}
	return api.ScoreDone{Model: r.Model, Version: r.Version, Label: r.Label, Score: r.Score, Scores: r.Scores, Values: r.Values}, nil
}

// unanswered says in the gateway's words what kept a champion from answering.
func unanswered(err error) error {
	if none := errors.Is(err, score.ErrNoModel); none || errors.Is(err, score.ErrUnscorable) {
		return &gateway.Unanswered{NoChampion: none, Err: err}
	}
	return err
}

// canScore tells whether the process can find models, were it asked for them.
func (p *Platform) canScore() bool {
	return p.works != nil || p.redis != nil && p.addresses.Store != ""
}

// modelsOf are those that are kept for whoever asks. They share the cache with
// the scorers that run here, so that what is in memory is there once.
func (p *Platform) modelsOf(ctx context.Context, c config.Scorer) (*serving.Models, error) {
	opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), openWithin) // it outlives who asks first
	defer cancel()
	on, err := p.openScoring(opening)
	if err != nil {
		return nil, err
	}
	return on.asked.of(p, on, c.Engine)
}

// inference answers whoever asks for a model by its name, as other servers of
// models are asked.
func (p *Platform) inference() *oip.Handler {
	return oip.New(oip.Options{Version: p.version,
		Models: func(ctx context.Context) (*serving.Models, error) {
			return p.modelsOf(ctx, config.Scorer{Engine: infer.EngineAuto})
		},
		Ready: func(ctx context.Context) bool { return p.Ready(ctx).Status != api.Failed }})
}

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
		return api.Rescored{}, &gateway.Unanswered{Err: err}
	case err != nil && !errors.Is(err, errEnough):
		return api.Rescored{}, err
	}
	told := api.Rescored(done)
	if told.Reasons == nil {
		told.Reasons = map[string]string{}
	}
	return told, nil
}
