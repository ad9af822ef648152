package platform

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/scoring/serving"
)

// scorerSet holds the scorers of this process.
type scorerSet struct {
	p    *Platform
	only string // name of the only scorer of this process; if empty, all scorers of the config

	mu     retry.Mutex
	on     *scoringModels // nil until there is a scorer
	all    map[string]*runningScorer
	absent bool // the config has no scorer of the name in only
}

// runningScorer is a running scorer.
type runningScorer struct {
	config config.Scorer
	models *serving.Models
	score  *score.Scorer
}

// Scorers opens the scorers of the config, or only the named scorer, and follows changes of the
// config. It waits until the ledger has all facts. The stop order closes the scorers. The platform must
// have been opened with Telemetry.
func (p *Platform) Scorers(ctx context.Context, only string) error {
	if p.telemetry == nil {
		return errors.New("open the scorers: the platform was opened without telemetry")
	}
	s := &scorerSet{p: p, only: only, all: map[string]*runningScorer{}}
	if len(s.wanted(p.Config())) > 0 {
		if err := p.awaitFacts(ctx); err != nil {
			return fmt.Errorf("open the scorers: %w", err)
		}
	}
	c := p.Config()
	if err := s.apply(ctx, c); err != nil {
		return err
	}
	if only != "" && s.absent {
		return fmt.Errorf("open the scorer: %w", noScorer(c, only))
	}
	p.mu.Lock()
	p.scorers = s
	p.mu.Unlock()
	return p.addComponent(ctx, component{name: "the scorers", has: c, apply: s.apply, check: s.check})
}

// ScorerStandings returns the states of the scorers of this process.
func (p *Platform) ScorerStandings() []score.Standing {
	p.mu.Lock()
	s := p.scorers
	p.mu.Unlock()
	if s == nil {
		return nil
	}
	var all []score.Standing
	for _, one := range s.sortedScorers() {
		all = append(all, one.score.Standing())
	}
	return all
}

func noScorer(c *config.Config, name string) error {
	if len(c.Scorers) == 0 {
		return fmt.Errorf("there is no scorer %q: the config has none under scorers", name)
	}
	names := make([]string, len(c.Scorers))
	for i, s := range c.Scorers {
		names[i] = s.Name
	}
	return fmt.Errorf("there is no scorer %q in the config; the scorers: %s", name, strings.Join(names, ", "))
}

// apply makes the running scorers match the config. Unchanged scorers continue. Removed or changed
// scorers leave their group before new scorers start.
func (s *scorerSet) apply(ctx context.Context, c *config.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := s.wanted(c)
	s.absent = s.only != "" && len(wanted) == 0
	if len(wanted) > 0 && s.on == nil {
		if err := s.openModels(ctx); err != nil {
			return err
		}
	}
	for name, running := range s.all {
		if now, ok := wanted[name]; ok && sameScorer(now, running.config) {
			delete(wanted, name)
			continue
		}
		delete(s.all, name)
		if err := s.closeScorer(ctx, running); err != nil {
			return fmt.Errorf("end the scorer %s: %w", name, err)
		}
	}
	for name, now := range wanted {
		running, err := s.open(ctx, now)
		if err != nil {
			return fmt.Errorf("open the scorer %s: %w", name, err)
		}
		s.all[name] = running
	}
	return nil
}

// sameScorer reports whether a scorer can continue with a new config. The number of its processes
// does not matter, and neither does its watch for drift, which the observer has.
func sameScorer(a, b config.Scorer) bool {
	a.Replicas, b.Replicas, a.Drift, b.Drift = config.Replicas{}, config.Replicas{}, nil, nil
	return reflect.DeepEqual(a, b)
}

func (s *scorerSet) wanted(c *config.Config) map[string]config.Scorer {
	all := map[string]config.Scorer{}
	for _, one := range c.Scorers {
		if s.only == "" || one.Name == s.only {
			all[one.Name] = one
		}
	}
	return all
}

// openModels opens the models and publishes the scorers' state for the gateways.
func (s *scorerSet) openModels(ctx context.Context) error {
	on, err := s.p.openScoring(ctx)
	if err != nil {
		return err
	}
	s.on = on
	s.p.AtStop(Consumers, "the scorers", s.closeAll)
	s.p.publishScoring(ctx, s)
	return nil
}

func (s *scorerSet) open(ctx context.Context, c config.Scorer) (*runningScorer, error) {
	on := s.on
	running := &runningScorer{config: c}
	models, err := serving.Open(serving.Options{Cache: on.cache, Champions: on.champions, Engine: c.Engine, Logger: s.p.log,
		Unloadable: func(model string, version, kept int, reason error) {
			s.p.sayUnloadable(on, c.Name, model, version, kept, reason)
		},
		Loaded: func(model string, version int, told bool) { s.p.sayLoaded(on, c.Name, model, version, told) }})
	if err != nil {
		return nil, err
	}
	running.models = models
	on.listeners.add(models)
	running.score, err = score.Open(ctx, score.Options{Broker: s.p.broker, Names: s.p.names, Config: c, Champions: on.champions,
		Models: models, Registerer: s.p.telemetry.Registry(), Logger: s.p.log, SessionTimeout: s.p.models.SessionTimeout})
	if err != nil {
		return nil, errors.Join(err, s.closeScorer(context.WithoutCancel(ctx), running))
	}
	return running, nil
}

// closeScorer closes a scorer and its models.
func (s *scorerSet) closeScorer(ctx context.Context, running *runningScorer) (err error) {
	if running.score != nil {
		err = running.score.Close(ctx)
	}
	s.on.listeners.remove(running.models)
	return errors.Join(err, running.models.Close())
}

// closeAll drains all scorers in parallel, so that each scorer has the whole time.
func (s *scorerSet) closeAll(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		all    sync.WaitGroup
		failed = make(chan error, len(s.all))
	)
	for _, running := range s.all {
		all.Go(func() { failed <- s.closeScorer(ctx, running) })
	}
	all.Wait()
	close(failed)
	clear(s.all)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sortedScorers returns the running scorers, sorted by name.
func (s *scorerSet) sortedScorers() []*runningScorer {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*runningScorer, 0, len(s.all))
	for _, running := range s.all {
		all = append(all, running)
	}
	slices.SortFunc(all, func(a, b *runningScorer) int { return strings.Compare(a.config.Name, b.config.Name) })
	return all
}

// check returns the worst state of the scorers.
func (s *scorerSet) check(context.Context) api.Check {
	whole := api.Check{Name: "scorers", Status: api.OK}
	s.mu.Lock()
	absent := s.absent
	s.mu.Unlock()
	if absent {
		return api.Check{Name: "scorers", Status: api.Degraded, Detail: "the config has no scorer " + s.only + " any more, so that nothing is scored here"}
	}
	var said []string
	for _, running := range s.sortedScorers() {
		c := running.score.Check()
		if c.Status == api.OK || c.Status == "" {
			continue
		}
		said = append(said, running.config.Name+": "+c.Detail)
		if whole.Status == api.OK || c.Status == api.Failed {
			whole.Status = c.Status
		}
	}
	whole.Detail = strings.Join(said, "; ")
	return whole
}
