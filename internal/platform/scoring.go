package platform

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/serving"
)

// ScoringOptions say what the models that answer here may take.
type ScoringOptions struct {
	Memory int64  // bytes of models in memory; 0 is infer's default
	Dir    string // of models on the disk; empty is models in the data folder of runs, and none without
	Disk   int64  // bytes there; 0 is infer's default

	SessionTimeout time.Duration // of the scorers' groups; the broker's default
}

// modelFolder is where the laptop's models lie, in the data folder.
const modelFolder = "models"

// scoring is what whoever asks models here stands on. It is opened by the first
// who does: a process that scores nothing follows no champions.
type scoring struct {
	ledger    *ledger.Ledger
	store     *store.Store
	cache     *infer.Cache
	champions *champions.Table
	ears      ears
	asked     asked
}

// ears are those who are told of changed champions.
type ears struct {
	mu  sync.Mutex
	all []*serving.Models
}

func (e *ears) add(m *serving.Models) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all[:len(e.all):len(e.all)], m)
}

func (e *ears) remove(m *serving.Models) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := make([]*serving.Models, 0, len(e.all))
	for _, one := range e.all {
		if one != m {
			left = append(left, one)
		}
	}
	e.all = left
}

// changed runs on the goroutine that follows the facts.
func (e *ears) changed(model string, now champions.Champion) {
	e.mu.Lock()
	all := e.all
	e.mu.Unlock()
	for _, m := range all {
		m.Changed(model, now)
	}
}

// openScoring opens it, or gives the one that is open.
func (p *Platform) openScoring(ctx context.Context) (*scoring, error) {
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if p.scores != nil {
		return p.scores, nil
	}
	s := &scoring{}
	if err := p.openRegistry(ctx, s); err != nil {
		return nil, err
	}
	if err := p.openChampions(ctx, s); err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	// Whoever asks models is stopped before this, in the same stage: they were
	// opened later.
	p.AtStop(Consumers, "the models", s.close)
	p.scores = s
	return s, nil
}

// openRegistry finds where versions are known and their files lie: with the runs,
// or, in a process without any, by itself.
func (p *Platform) openRegistry(ctx context.Context, s *scoring) (err error) {
	if p.works != nil {
		s.ledger, s.store = p.works.ledger, p.works.store
		return nil
	}
	if p.redis == nil {
		return errors.New("score: it takes a Redis to know the champions from; give --redis")
	}
	if p.addresses.Store == "" {
		return errors.New("score: it takes the object store to read models from; give --store, the one that tidemill up has or was given")
	}
	if p.library == nil {
		if p.library, err = p.openStore(ctx, RunsOptions{}); err != nil {
			return err
		}
	}
	if p.registry == nil {
		if p.registry, err = p.openLedger(ctx); err != nil {
			return err
		}
	}
	s.ledger, s.store = p.registry, p.library
	return nil
}

func (p *Platform) openChampions(ctx context.Context, s *scoring) (err error) {
	s.cache, err = infer.Open(infer.Options{Memory: p.models.Memory, Dir: p.models.Dir, Disk: p.models.Disk,
		Fetch: s.fetch, Collect: debug.SetGCPercent, Registerer: p.registerer(), Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the cache of models: %w", err)
	}
	s.champions, err = champions.Open(ctx, champions.Options{Broker: p.broker, Ledger: s.ledger, Logger: p.log, Changed: s.ears.changed})
	if err != nil {
		return fmt.Errorf("read who the champions are: %w", err)
	}
	return nil
}

// registerer is nil in a process that tells nothing of itself.
func (p *Platform) registerer() prometheus.Registerer {
	if p.telemetry == nil {
		return nil
	}
	return p.telemetry.Registry()
}

// close comes when nobody asks any more. What was given out goes first.
func (s *scoring) close(ctx context.Context) error {
	err := s.asked.close()
	if s.champions != nil {
		err = errors.Join(err, s.champions.Close(ctx))
	}
	if s.cache != nil {
		err = errors.Join(err, s.cache.Close())
	}
	return err
}

// fetch reads a file of an artifact, whole and verified. One that is not there is
// fs.ErrNotExist, and one that is too large infer.ErrUnfit.
func (s *scoring) fetch(ctx context.Context, artifact, file string, limit int64) (data []byte, err error) {
	f, err := s.store.File(ctx, artifact, file)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("read %s of a model: %w: %w", file, fs.ErrNotExist, err)
	case err != nil:
		return nil, fmt.Errorf("read %s of a model: %w", file, err)
	case f.Size > limit:
		return nil, fmt.Errorf("read %s of a model: %w: it has %d bytes, and %d are the most", file, infer.ErrUnfit, f.Size, limit)
	}
	r, err := s.store.OpenFile(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read %s of a model: %w", file, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	b := bytes.NewBuffer(make([]byte, 0, f.Size+bytes.MinRead)) // it does not grow, or a large one would take three times its size
	if _, err = b.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, fmt.Errorf("read %s of a model: %w", file, err)
	}
	return b.Bytes(), nil
}

// modelDir is where models are kept on the disk.
func modelDir(o Options) string {
	if o.Scoring.Dir != "" || o.Runs == nil || o.Runs.Data == "" {
		return o.Scoring.Dir
	}
	return filepath.Join(o.Runs.Data, modelFolder)
}

// publishScoring tells gateways how the scorers stand here.
func (p *Platform) publishScoring(ctx context.Context, s *scorers) {
	board := status.NewScorers(p.redis, p.names, p.kafka)
	telling, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	host, _ := os.Hostname() // without one it is known by its id
	began := time.Now().UTC()
	id := tidemill.ID("scorer", began.String(), host, p.addresses.Kafka)[:8]
	running.Go(func() {
		board.Publish(telling, id, func() status.Process {
			told := status.Process{ID: id, Host: cmp.Or(host, id), Began: began, Cache: cacheStanding(s.on.cache.Stats())}
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

func cacheStanding(s infer.Stats) status.Cache {
	return status.Cache{Models: s.Models, Bytes: s.Bytes, Budget: s.Budget, Hits: s.Hits, Misses: s.Misses, Evicted: s.Evicted}
}

func scorerStanding(s score.Standing) status.Scorer {
	told := status.Scorer{Name: s.Name, Events: s.Events, Scored: s.Scored, Passed: s.Passed, Dropped: s.Dropped,
		DeadLettered: s.DeadLettered, Held: s.Held, Skipped: s.Skipped, Aborted: s.Aborted, Rate: s.Rate, Lag: s.Lag, P50: s.P50, P99: s.P99,
		Models: s.Models, LastError: s.LastError, LastErrorAt: s.LastErrorAt}
	for _, swap := range s.Swaps {
		told.Swaps = append(told.Swaps, status.Swap(swap))
	}
	return told
}

// unloadableWithin is for how long it is tried to say that a champion cannot be
// loaded. The log has it besides.
const unloadableWithin = 30 * time.Second

// unloadable is what is to be said of a champion.
type unloadable struct {
	scorer, model string
	version, kept int
	champion      champions.Champion
	reason        error
}

// view is the fact. Its id follows from what it says, so that of several processes
// of a scorer each says the same; a version that is promoted again is another.
func (u unloadable) view(names tidemill.Names, at time.Time) (broker.View, error) {
	data, err := json.Marshal(tidemill.ModelUnloadable{Scorer: u.scorer, Version: u.version, Kept: u.kept, Error: u.reason.Error()})
	if err != nil {
		return broker.View{}, err
	}
	id := tidemill.ID(tidemill.TypeModelUnloadable, u.scorer, u.model, strconv.Itoa(u.version), strconv.FormatInt(u.champion.Turn, 10))
	return broker.View{ID: id, Source: names.Source("scorer/" + u.scorer), Type: tidemill.TypeModelUnloadable, Subject: u.champion.Key,
		Time: at.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(tidemill.TypeModelUnloadable),
		DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(u.model)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: u.model}, {Name: tidemill.AttrModelVersion, Value: strconv.Itoa(u.version)},
			{Name: tidemill.AttrCorrelationID, Value: id}}}, nil
}

// sayUnloadable publishes it, and waits for nobody: who tells of it loads models.
func (p *Platform) sayUnloadable(on *scoring, u unloadable) {
	u.champion, _ = on.champions.Champion(u.model)
	v, err := u.view(p.names, time.Now())
	if err != nil {
		p.log.Error("scorer: reporting a champion that cannot be loaded failed", "model", u.model, "version", u.version, "reason", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unloadableWithin)
	p.announcer.Send(ctx, tidemill.StreamFacts, &v, func(_ broker.Receipt, err error) {
		cancel()
		if err != nil {
			p.log.Error("scorer: reporting a champion that cannot be loaded failed", "model", u.model, "version", u.version, "reason", err)
		}
	})
}
