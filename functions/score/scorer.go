package score

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/champions"
	"tidemill.dev/internal/served"
)

// Options say what to score, and by what.
type Options struct {
	Broker     *broker.Broker
	Names      tidemill.Names
	Config     config.Scorer
	Champions  *champions.Table
	Models     *served.Models
	Registerer prometheus.Registerer
	Logger     *slog.Logger

	SessionTimeout time.Duration // after which a silent process is taken for dead; the broker's default

	held heldOptions // of tests that have little to hold
}

// Scorer scores one stream, together with all others of its name: each has some
// partitions of it.
type Scorer struct {
	o         Options
	conf      config.Scorer
	source    string
	most      int // events a batch
	log       *slog.Logger
	counts    counts
	collector *collector

	mu      sync.Mutex
	session *session // nil between two
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open joins the scorer's group and begins.
func Open(ctx context.Context, o Options) (*Scorer, error) {
	s := &Scorer{o: o, conf: o.Config, source: o.Names.Source("scorer/" + o.Config.Name), most: o.Config.MaxBatch, log: o.Logger}
	s.counts.latency, s.counts.sizes = &latencies{}, &latencies{}
	if s.most <= 0 {
		s.most = mostEvents
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.register(); err != nil {
		return nil, fmt.Errorf("open scorer %s: %w", s.conf.Name, err)
	}
	first, err := s.open(ctx)
	if err != nil {
		s.unregister()
		return nil, fmt.Errorf("open scorer %s: %w", s.conf.Name, err)
	}
	s.session = first
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.running.Go(func() { s.keep(life) })
	s.running.Go(func() { s.look(life) })
	return s, nil
}

// keep joins the group anew when a session has failed, until the scorer closes.
func (s *Scorer) keep(life context.Context) {
	for {
		s.mu.Lock()
		one := s.session
		s.mu.Unlock()
		select {
		case <-one.life.Done():
		case <-life.Done():
			return
		}
		s.failing(context.Cause(one.life))
		s.log.Error("a scorer has stopped and begins anew", "scorer", s.conf.Name, "after", again.String(), "reason", context.Cause(one.life))
		s.fresh(life, one)
		if life.Err() != nil {
			return
		}
	}
}

// again is how long a scorer rests before it begins anew.
const again = time.Second

// fresh ends a session that has failed and opens the next.
func (s *Scorer) fresh(life context.Context, old *session) {
	s.mu.Lock()
	s.session = nil
	s.mu.Unlock()
	soon, cancel := context.WithTimeout(life, again)
	if err := old.leave(soon); err != nil {
		s.log.Warn("a scorer could not leave its group in order", "scorer", s.conf.Name, "reason", err)
	}
	cancel()
	for life.Err() == nil {
		wait(life, again)
		next, err := s.open(life)
		if err == nil {
			s.mu.Lock()
			s.session = next
			s.mu.Unlock()
			return
		}
		s.failing(err)
		s.log.Error("a scorer cannot begin", "scorer", s.conf.Name, "after", again.String(), "reason", err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Close ends what has begun, commits, and leaves the group. What it cannot end
// in time is left for others.
func (s *Scorer) Close(ctx context.Context) error {
	s.stop()
	s.running.Wait()
	s.unregister()
	s.mu.Lock()
	one := s.session
	s.mu.Unlock()
	if one == nil {
		return nil
	}
	return one.close(ctx)
}

// heldUp is for how long a load that failed counts: it is tried again sooner.
const heldUp = time.Minute

// Check tells whether it is ready. It is also where events are held because models
// cannot be loaded, but says so; which they are is in its standing, since a model's
// name has a key in it and readiness is for many.
func (s *Scorer) Check() api.Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := api.Check{Name: "scorer " + s.conf.Name, Status: api.OK}
	if s.session == nil || s.session.life.Err() != nil {
		s.counts.mu.Lock()
		c.Status, c.Detail = api.Failed, s.counts.fault
		s.counts.mu.Unlock()
		return c
	}
	if at, err := s.o.Models.Failure(); err != nil && s.counts.held.Load() > 0 && time.Since(at) < heldUp {
		c.Status, c.Detail = api.Degraded, fmt.Sprintf("%d events are held, for models cannot be loaded now; tidemill scorers %s says why", s.counts.held.Load(), s.conf.Name)
	}
	return c
}

// leave gives up what has begun.
func (s *session) leave(ctx context.Context) error {
	if s.end != nil {
		s.end(broker.ErrClosed)
	}
	return errors.Join(s.shut(ctx))
}

// close ends what has begun: the consumer hands out nothing more, what it has
// handed out goes on to its commit, and then the group is left.
func (s *session) close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.end(context.Cause(ctx)) })
	defer stop()
	return s.shut(ctx)
}

func (s *session) shut(ctx context.Context) error {
	var err error
	if s.c != nil {
		err = s.c.Close(ctx)
	}
	s.running.Wait()
	if s.end != nil {
		s.end(broker.ErrClosed)
	}
	if s.t != nil {
		err = errors.Join(err, s.t.Close(ctx))
	}
	if s.p != nil {
		err = errors.Join(err, s.p.Close(ctx))
	}
	return err
}
