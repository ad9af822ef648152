package platform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/models/trials"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/triggers/commands"
)

// Shares of one core that the trials of a scorer may use while it answers events: in its process, and in another one.
const trialShareBeside, trialShareApart = 0.1, 0.5

// trialTasks returns a task for each scorer on whose stream a recipe tries its candidates. A trial that began
// before its recipe lost its trial goes on only if another recipe has one there.
func (p *Platform) trialTasks(c *config.Config) (all []observerTask) {
	for _, s := range c.Scorers {
		if slices.ContainsFunc(c.Recipes, func(r config.Recipe) bool { return r.Trial != nil && r.Trial.Scorer == s.Name }) {
			s.Replicas = config.Replicas{}
			all = append(all, observerTask{name: "trials." + s.Name, config: s, run: func(ctx context.Context) error { return p.runTrials(ctx, s) }})
		}
	}
	return all
}

// runTrials runs the trials of a scorer until the context ends.
func (p *Platform) runTrials(ctx context.Context, s config.Scorer) (err error) {
	if err := p.awaitFacts(ctx); err != nil {
		return err
	}
	registrar, closing, err := p.trialRegistrar(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing(context.WithoutCancel(ctx))) }()
	o := p.trialOptions(s)
	o.Registrar, o.Ledger = registrar, p.scores.ledger // awaitFacts has set scores, which then stays
	if o.Share = trialShareApart; len(p.ScorerStandings()) > 0 {
		o.Share = trialShareBeside
	}
	told, stop := p.publishTrials(ctx, s.Name)
	defer stop()
	o.Told = told
	return trials.Run(ctx, o)
}

func (p *Platform) trialOptions(s config.Scorer) trials.Options {
	return trials.Options{Broker: p.broker, Scorer: s, Logger: p.log,
		Load: func(ctx context.Context, v *tidemill.Version) (trials.Candidate, error) {
			return p.loadCandidate(ctx, &s, v)
		}}
}

// trialRegistrar returns the registrar of the runs. In a process without runs it makes one, which needs to know
// whether promotions are frozen.
func (p *Platform) trialRegistrar(ctx context.Context) (*registry.Registrar, func(context.Context) error, error) {
	if p.works != nil {
		return p.works.models, func(context.Context) error { return nil }, nil
	}
	asked, err := commands.Follow(ctx, p.broker, p.log)
	if err != nil {
		return nil, nil, fmt.Errorf("read whether promotions are frozen: %w", err)
	}
	r, err := registry.New(registry.Options{Ledger: p.scores.ledger, Store: p.scores.store, Broker: p.broker, Names: p.names, Asked: asked.Now, Logger: p.log})
	if err != nil {
		return nil, nil, errors.Join(err, asked.Close(ctx))
	}
	return r, asked.Close, nil
}

// publishTrials publishes the states of a scorer's trials for the gateways until stop is called.
func (p *Platform) publishTrials(ctx context.Context, scorer string) (told func(context.Context, []api.Trial), stop func()) {
	var (
		mu      sync.Mutex
		now     []api.Trial
		running sync.WaitGroup
	)
	publishing, cancel := context.WithCancel(ctx)
	running.Go(func() {
		status.NewTrials(p.redis, p.names, p.kafka).Publish(publishing, scorer, func() []api.Trial {
			mu.Lock()
			defer mu.Unlock()
			return now
		})
	})
	told = func(_ context.Context, all []api.Trial) {
		mu.Lock()
		defer mu.Unlock()
		now = all
	}
	return told, func() {
		cancel()
		running.Wait()
	}
}

// candidate is a version that answers events as a scorer would.
type candidate struct {
	model *infer.Model
	*score.Answerer
}

// Close releases the model.
func (c *candidate) Close() { c.model.Release() }

// Label returns the label of the answer to an event.
func (c *candidate) Label(v *broker.View) (string, error) {
	label, err := c.Answerer.Label(v)
	if errors.Is(err, infer.ErrAway) {
		err = fmt.Errorf("%w: %w", trials.ErrLater, err)
	}
	return label, err
}

// loadCandidate loads a version as a scorer does. Only a model that no engine supports is at fault itself.
func (p *Platform) loadCandidate(ctx context.Context, s *config.Scorer, v *tidemill.Version) (trials.Candidate, error) {
	m, err := p.LoadModel(ctx, infer.Ref{Model: v.Model, Version: v.Number, Artifact: v.Artifact, Engine: s.Engine})
	switch {
	case errors.Is(err, infer.ErrUnfit):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w", trials.ErrLater, err)
	}
	a, err := score.NewAnswerer(s, m)
	if err != nil {
		m.Release()
		return nil, err
	}
	return &candidate{m, a}, nil
}

// judgeAgain computes the verdict of a trial again.
func (p *Platform) judgeAgain(ctx context.Context, v *ledger.VersionRecord) (trials.Recomputed, error) {
	if v.Judgement == nil || v.Judgement.Trial == nil {
		return trials.Recomputed{}, trials.ErrNoVerdict
	}
	s, ok := p.Config().Scorer(v.Judgement.Trial.Scorer)
	if !ok {
		return trials.Recomputed{}, fmt.Errorf("%w: the config has no scorer %s any more", trials.ErrExpired, v.Judgement.Trial.Scorer)
	}
	return trials.Again(ctx, p.trialOptions(s), v)
}
