package platform

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/oip"
	"tidemill.dev/internal/served"
	"tidemill.dev/internal/web"
)

// asked are the models of which single answers are wanted, by engine. The
// scorers have their own, which tell the facts of a champion that cannot be
// loaded; who asks is told so in the answer.
type asked struct {
	mu  sync.Mutex
	all map[string]*served.Models
}

// openWithin bounds what the first who asks waits for.
const openWithin = 30 * time.Second

// of opens the models of an engine once.
func (a *asked) of(p *Platform, on *scoring, engine string) (*served.Models, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.all[engine]; m != nil {
		return m, nil
	}
	m, err := served.Open(served.Options{Cache: on.cache, Champions: on.champions, Engine: engine, Logger: p.log,
		Unloadable: func(model string, version, kept int, reason error) {
			p.log.Warn("a champion that was asked for cannot be loaded", "model", model, "version", version, "reason", reason)
		}})
	if err != nil {
		return nil, err
	}
	if a.all == nil {
		a.all = map[string]*served.Models{}
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
		return &web.Unanswered{NoChampion: none, Err: err}
	}
	return err
}

// canScore tells whether the process can find models, were it asked for them.
func (p *Platform) canScore() bool {
	return p.works != nil || p.redis != nil && p.addresses.Store != ""
}

// modelsOf are those that are kept for whoever asks. They share the cache with
// the scorers that run here, so that what is in memory is there once.
func (p *Platform) modelsOf(ctx context.Context, c config.Scorer) (*served.Models, error) {
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
		Models: func(ctx context.Context) (*served.Models, error) {
			return p.modelsOf(ctx, config.Scorer{Engine: infer.EngineAuto})
		},
		Ready: func(ctx context.Context) bool { return p.Ready(ctx).Status != api.Failed }})
}
