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
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
)

// Options configure a scorer.
type Options struct {
	Broker     *broker.Broker
	Names      tidemill.Names
	Config     config.Scorer
	Champions  *champions.Table
	Models     *serving.Models
	Registerer prometheus.Registerer
	Logger     *slog.Logger

	SessionTimeout time.Duration // time after which a silent process counts as dead; 0 is the broker's default

	held heldOptions // limits for tests, which park few events
}

// Scorer scores one stream together with all scorers of its name. Each has some partitions of it.
type Scorer struct {
	o         Options
	conf      config.Scorer
	source    string
	most      int // largest number of events of a batch
	log       *slog.Logger
	counts    counts
	collector *collector

	mu      sync.Mutex
	session *session // nil between two sessions
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open joins the scorer's group and starts to score.
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
	s.running.Go(func() { s.keepRunning(life) })
	s.running.Go(func() { s.updateLag(life) })
	return s, nil
}

// keepRunning joins the group again when a session has failed, until the scorer is closed.
func (s *Scorer) keepRunning(life context.Context) {
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
		s.log.Error("scorer: stopped; starting again", "scorer", s.conf.Name, "after", restartDelay.String(), "reason", context.Cause(one.life))
		s.reopen(life, one)
		if life.Err() != nil {
			return
		}
	}
}

// restartDelay is how long a scorer waits before it starts again.
const restartDelay = time.Second

// reopen ends a session that has failed and opens the next.
func (s *Scorer) reopen(life context.Context, old *session) {
	s.mu.Lock()
	s.session = nil
	s.mu.Unlock()
	soon, cancel := context.WithTimeout(life, restartDelay)
	if err := old.leave(soon); err != nil {
		s.log.Warn("scorer: leaving the group failed; its partitions are reassigned later", "scorer", s.conf.Name, "reason", err)
	}
	cancel()
	for life.Err() == nil {
		_ = retry.Sleep(life, restartDelay)
		next, err := s.open(life)
		if err == nil {
			s.mu.Lock()
			s.session = next
			s.mu.Unlock()
			return
		}
		s.failing(err)
		s.log.Error("scorer: starting failed; retrying", "scorer", s.conf.Name, "after", restartDelay.String(), "reason", err)
	}
}

// Close ends the batches under way, commits, and leaves the group. Other scorers handle
// the events of batches that do not end in time.
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

// heldUp is how long a failed load counts. The next try comes sooner.
const heldUp = time.Minute

// Check returns the readiness. A scorer is ready but degraded while events wait because
// models cannot be loaded. The models are listed in its status only: their names
// contain keys, and many can read the readiness.
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
	if at, err := s.o.Models.Failure(); err != nil && !errors.Is(err, infer.ErrUnfit) && s.counts.held.Load() > 0 && time.Since(at) < heldUp {
		c.Status, c.Detail = api.Degraded, fmt.Sprintf("%d events wait, because models cannot be loaded now; tidemill scorers %s shows why", s.counts.held.Load(), s.conf.Name)
	}
	return c
}

// leave gives up the batches under way.
func (s *session) leave(ctx context.Context) error {
	if s.end != nil {
		s.end(broker.ErrClosed)
	}
	return errors.Join(s.shut(ctx))
}

// close stops the consumer, commits the batches under way, and leaves the group.
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

// lookEvery is how often the end of the stream is read.
const lookEvery = 2 * time.Second

// updateLag keeps the lag up to date.
func (s *Scorer) updateLag(life context.Context) {
	for life.Err() == nil {
		_ = retry.Sleep(life, lookEvery)
		s.mu.Lock()
		one := s.session
		s.mu.Unlock()
		if one == nil {
			continue
		}
		if lag, err := one.lag(life); err == nil { // otherwise the next look tries again
			s.counts.lag.Store(lag)
		}
	}
}

func (s *session) lag(ctx context.Context) (int64, error) {
	ends, err := s.o.Broker.Ends(ctx, s.conf.From)
	if err != nil {
		return 0, err
	}
	behind := int64(0)
	for _, p := range s.c.Positions() {
		for _, end := range ends {
			if end.Partition == p.Partition {
				behind += max(0, end.Offset-p.Offset)
			}
		}
	}
	return behind, nil
}
