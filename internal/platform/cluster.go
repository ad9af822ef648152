package platform

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/runs/kube"
	"tidemill.dev/internal/runs/warmpods"
)

// ClusterOptions configure attempts in Kubernetes.
type ClusterOptions struct {
	Kubeconfig string // path of a file; if empty, the cluster in which this process runs
	Namespace  string // if empty, the namespace of the pod, or of the kubeconfig
	Runs       string // namespace of the objects of runs; if empty, the same namespace
	Gateway    string // URL of the gateway for agents in pods
	Image      string // our own image, which contains the agent
	Withheld   config.Withheld
}

// openCluster reads the address of the API server; it sends no request yet.
func (p *Platform) openCluster(ctx context.Context, o ClusterOptions) (err error) {
	p.cluster, err = kube.Open(ctx, kube.Options{Kubeconfig: o.Kubeconfig, Namespace: o.Namespace, Runs: o.Runs, Names: p.names, Config: p.Config,
		Gateway: o.Gateway, Image: o.Image, Withheld: o.Withheld, Warm: p.warm, Registerer: p.metricsRegisterer(), Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the way to Kubernetes: %w", err)
	}
	p.AtStop(clients, "the way to Kubernetes", p.cluster.Close)
	return nil
}

// openWarm opens the list of waiting pods; nil without Redis.
func (p *Platform) openWarm() {
	if p.redis != nil {
		p.warm = warmpods.NewBook(p.redis, p.names, p.kafka)
	}
}

// watchCluster watches attempts' pods and scales the scorers until the stop order ends it.
func (p *Platform) watchCluster(ctx context.Context) {
	if p.cluster == nil || p.works == nil {
		return
	}
	behind := lagReader{p: p, seen: map[string]streamGrowth{}}
	p.untilStop(ctx, Consumers, "the watch over Kubernetes",
		p.endless("watching the pods of runs", func(ctx context.Context) error {
			return p.cluster.Watch(ctx, kube.WatchOptions{Foreman: p.works.foreman, Ledger: p.works.ledger})
		}),
		p.endless("scaling the scorers", func(ctx context.Context) error { return p.cluster.Scale(ctx, behind.scorerLag) }))
}

// serviceWatcher follows the Knative Services once a trigger names such a service. Without such a
// trigger no request is sent, so the cluster need not have Knative.
type serviceWatcher struct {
	p     *Platform
	knows bool // whether our own functions are Knative Services

	mu   sync.Mutex
	all  *kube.Services
	stop context.CancelFunc
}

// openServices starts services, which follow Knative once a config names a service.
func (p *Platform) openServices(ctx context.Context) error {
	if p.cluster == nil {
		return nil
	}
	s := &serviceWatcher{p: p, knows: p.functionsAt == Knative}
	p.services = s
	p.AtStop(Consumers, "the look for services", func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stop != nil {
			s.stop()
		}
		return nil
	})
	return p.addComponent(ctx, component{name: "the services", apply: s.apply, check: s.check})
}

func (s *serviceWatcher) apply(ctx context.Context, c *config.Config) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all != nil || !s.knows && !asksForServices(c) {
		return nil
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	if s.all, err = s.p.cluster.Services(following); err != nil {
		stop()
		return fmt.Errorf("follow the services of Knative: %w", err)
	}
	s.stop = stop
	return nil
}

func asksForServices(c *config.Config) bool {
	for i := range c.Triggers {
		if c.Triggers[i].To.Service != "" {
			return true
		}
	}
	return false
}

func (s *serviceWatcher) known() *kube.Services {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

func (s *serviceWatcher) check(context.Context) api.Check {
	c := api.Check{Name: "services", Status: api.OK}
	if all := s.known(); all != nil {
		if err := all.Check(); err != nil {
			c.Status, c.Detail = api.Degraded, err.Error()
		}
	}
	return c
}

// lagReader computes the lags of scorers, even of scorers without a process.
type lagReader struct {
	p *Platform

	mu   sync.Mutex
	seen map[string]streamGrowth // by scorer
}

// streamGrowth is the length of a stream and the time at which that length was first seen.
type streamGrowth struct {
	events int64
	at     time.Time
}

// scorerLag reads a scorer's lag from Kafka. Events that a scorer has parked for their models do
// not count in the lag, because their offsets are committed. The metadata of those offsets reports
// them.
func (l *lagReader) scorerLag(ctx context.Context, s config.Scorer) (kube.Lag, error) {
	ends, err := l.p.broker.Ends(ctx, s.From)
	if err != nil {
		return kube.Lag{}, fmt.Errorf("read the lag of the scorer %s: %w", s.Name, err)
	}
	committed, err := l.p.broker.Committed(ctx, score.Group(s.Name), ends)
	if err != nil {
		return kube.Lag{}, fmt.Errorf("read the progress of the scorer %s: %w", s.Name, err)
	}
	lag := kube.Lag{Newest: l.grew(s.Name, ends, time.Now()), Partitions: len(ends)}
	if lag.Behind, err = l.uncommitted(ctx, s, ends, committed); err != nil || lag.Behind > 0 {
		return lag, err
	}
	if lag.Held, err = l.hasParked(ctx, s.Name, committed); err == nil && lag.Held {
		lag.Models, err = l.p.works.ledger.ModelsMark(ctx)
	}
	return lag, err
}

func (l *lagReader) grew(scorer string, ends []broker.Position, now time.Time) time.Time {
	sum := int64(0)
	for _, e := range ends {
		sum += e.Offset
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, known := l.seen[scorer]; !known || before.events != sum {
		l.seen[scorer] = streamGrowth{sum, now}
	}
	return l.seen[scorer].at
}

// uncommitted returns the number of events whose offsets are not committed.
func (l *lagReader) uncommitted(ctx context.Context, s config.Scorer, ends, committed []broker.Position) (_ int64, err error) {
	var begins []broker.Position // first offsets; read only if needed
	sum := int64(0)
	for i, c := range committed {
		from := c.Offset
		if from < 0 && s.Latest {
			sum++ // the scorer must start once, because its group begins at the present end of the stream
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

// hasParked reports whether a scorer has parked events for their models.
func (l *lagReader) hasParked(ctx context.Context, scorer string, committed []broker.Position) (bool, error) {
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
