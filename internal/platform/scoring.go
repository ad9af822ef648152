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

// ScoringOptions limit the resources of models in this process.
type ScoringOptions struct {
	Memory int64  // bytes of models in memory; 0 for infer's default
	Dir    string // folder of models on disk; if empty, a folder in the data folder of runs, or none without runs
	Disk   int64  // bytes of models on disk; 0 for infer's default

	SessionTimeout time.Duration // session timeout of the scorers' groups; 0 for the broker's default
}

// modelFolder is the folder of models in the data folder.
const modelFolder = "models"

// scoringModels holds the champions and the cache of models. The models are opened at the first
// use, so that a process that scores nothing follows no champions.
type scoringModels struct {
	ledger    *ledger.Ledger
	store     *store.Store
	cache     *infer.Cache
	champions *champions.Table
	listeners championListeners
	asked     requestModels
}

// championListeners holds the models that are notified of changed champions.
type championListeners struct {
	mu  sync.Mutex
	all []*serving.Models
}

func (e *championListeners) add(m *serving.Models) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all[:len(e.all):len(e.all)], m)
}

func (e *championListeners) remove(m *serving.Models) {
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

// onChange runs on the goroutine that follows the facts.
func (e *championListeners) onChange(model string, now champions.Champion) {
	e.mu.Lock()
	all := e.all
	e.mu.Unlock()
	for _, m := range all {
		m.Changed(model, now)
	}
}

// factsWithin is how long a request waits for a ledger that catches up. A ledger that fills Redis from
// the beginning of the log takes longer.
const factsWithin = time.Second

// openScoring returns the scoring of the process, and opens it at the first call. The error is
// ledger.ErrCatchingUp if the ledger does not have all facts soon. The lock is free during this wait,
// because other requests and the gates need the cache of models.
func (p *Platform) openScoring(ctx context.Context) (*scoringModels, error) {
	p.scoringLock.Lock()
	err := p.openCache(ctx)
	s := p.scores
	open := err == nil && s.champions != nil
	p.scoringLock.Unlock()
	if err != nil || open {
		return s, err
	}
	soon, cancel := context.WithTimeout(ctx, factsWithin)
	defer cancel()
	if err := s.ledger.CaughtUp(soon); err != nil {
		return nil, fmt.Errorf("read the champions: %w", err)
	}
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if s.champions != nil {
		return s, nil
	}
	return s, s.openChampions(ctx, p)
}

// awaitFacts waits until the ledger of the models has all facts.
func (p *Platform) awaitFacts(ctx context.Context) error {
	if _, err := p.modelCache(ctx); err != nil {
		return err
	}
	return p.scores.ledger.CaughtUp(ctx) // modelCache has set scores, which then stays
}

// openedScoring returns the scoring of the process; nil if it is not open yet.
func (p *Platform) openedScoring() *scoringModels {
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if p.scores == nil || p.scores.champions == nil {
		return nil
	}
	return p.scores
}

// modelCache returns the cache of models, and opens it at the first call. It follows no champions.
func (p *Platform) modelCache(ctx context.Context) (*infer.Cache, error) {
	p.scoringLock.Lock()
	defer p.scoringLock.Unlock()
	if err := p.openCache(ctx); err != nil {
		return nil, err
	}
	return p.scores.cache, nil
}

// openCache opens the cache unless it is open. The caller holds the lock.
func (p *Platform) openCache(ctx context.Context) (err error) {
	if p.scores != nil {
		return nil
	}
	s := &scoringModels{}
	if err := p.openRegistry(ctx, s); err != nil {
		return err
	}
	s.cache, err = infer.Open(infer.Options{Memory: p.models.Memory, Dir: p.models.Dir, Disk: p.models.Disk,
		Fetch: s.fetchFile, Collect: debug.SetGCPercent, Registerer: p.metricsRegisterer(), Logger: p.log})
	if err != nil {
		return fmt.Errorf("open the cache of models: %w", err)
	}
	// The users of models are opened later, so they stop earlier in the same stage.
	p.AtStop(Consumers, "the models", s.closeModels)
	p.scores = s
	return nil
}

// LoadModel brings a version into memory, as a scorer does, and asks it the golden request. The caller
// releases the model.
func (p *Platform) LoadModel(ctx context.Context, r infer.Ref) (*infer.Model, error) {
	cache, err := p.modelCache(ctx)
	if err != nil {
		return nil, err
	}
	return cache.Load(ctx, &r)
}

// openRegistry uses the ledger and the store of the runs. In a process without runs it opens its
// own.
func (p *Platform) openRegistry(ctx context.Context, s *scoringModels) (err error) {
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

func (s *scoringModels) openChampions(ctx context.Context, p *Platform) (err error) {
	s.champions, err = champions.Open(ctx, champions.Options{Broker: p.broker, Ledger: s.ledger, Logger: p.log, Changed: s.listeners.onChange})
	if err != nil {
		return fmt.Errorf("read the champions: %w", err)
	}
	return nil
}

// metricsRegisterer returns the registry of the metrics; nil in a process without telemetry.
func (p *Platform) metricsRegisterer() prometheus.Registerer {
	if p.telemetry == nil {
		return nil
	}
	return p.telemetry.Registry()
}

// closeModels closes the models and then the parts that they need. It is called after the last use
// of the models.
func (s *scoringModels) closeModels(ctx context.Context) error {
	err := s.asked.close()
	if s.champions != nil {
		err = errors.Join(err, s.champions.Close(ctx))
	}
	if s.cache != nil {
		err = errors.Join(err, s.cache.Close())
	}
	return err
}

// fetchFile reads and verifies a file of an artifact. The error is fs.ErrNotExist if the artifact was
// read and lacks the file, and infer.ErrUnfit if the file is too large. An artifact that is not in the
// store is neither: the caller tries again, because a copy of a store may lag.
func (s *scoringModels) fetchFile(ctx context.Context, artifact, file string, limit int64) (data []byte, err error) {
	f, err := s.store.File(ctx, artifact, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read %s of a model: %w", file, err)
	case errors.Is(err, store.ErrNotFound):
		return nil, fmt.Errorf("artifact %s, or a part of it, is not in the store, but its run has stored it; is --store the store of the runs, and is a copy of it complete? %w", artifact, err)
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
	b := bytes.NewBuffer(make([]byte, 0, f.Size+bytes.MinRead)) // large enough from the start, because growth would take three times the memory
	if _, err = b.ReadFrom(io.LimitReader(r, limit+1)); err != nil {
		return nil, fmt.Errorf("read %s of a model: %w", file, err)
	}
	return b.Bytes(), nil
}

// modelDir returns the folder of models on disk.
func modelDir(o Options) string {
	if o.Scoring.Dir != "" || o.Runs == nil || o.Runs.Data == "" {
		return o.Scoring.Dir
	}
	return filepath.Join(o.Runs.Data, modelFolder)
}

// publishScoring publishes the state of the scorers for the gateways.
func (p *Platform) publishScoring(ctx context.Context, s *scorerSet) {
	board := status.NewScorers(p.redis, p.names, p.kafka)
	host, _ := os.Hostname() // the id is shown if this fails
	began := time.Now().UTC()
	id := tidemill.ID("scorer", began.String(), host, p.addresses.Kafka)[:8]
	p.untilStop(ctx, Consumers, "the status of the scorers", func(ctx context.Context) {
		board.Publish(ctx, id, func() status.Process {
			told := status.Process{ID: id, Host: cmp.Or(host, id), Began: began, Cache: cacheStanding(s.on.cache.Stats())}
			for _, one := range s.sortedScorers() {
				told.Scorers = append(told.Scorers, scorerStanding(one.score.Standing()))
			}
			return told
		})
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

// reportWithin is how long we try to write a fact about a champion of a scorer.
const reportWithin = 30 * time.Second

// championReport is a scorer's fact about a champion or a canary: it cannot be loaded, or is loaded since.
type championReport struct {
	typ, scorer, model string
	version            int
	champion           champions.Champion
	data               any
}

// asEvent returns the fact. Its id derives from its content, so that several processes of a scorer
// write the same fact. If a version is promoted again, the id differs.
func (r championReport) asEvent(names tidemill.Names, at time.Time) (broker.View, error) {
	data, err := json.Marshal(r.data)
	if err != nil {
		return broker.View{}, err
	}
	version := strconv.Itoa(r.version)
	id := tidemill.ID(r.typ, r.scorer, r.model, version, strconv.FormatInt(r.champion.Turn, 10))
	return broker.View{ID: id, Source: names.Source("scorer/" + r.scorer), Type: r.typ, Subject: r.champion.Key,
		Time: at.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(r.typ),
		DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(r.model)),
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: r.model}, {Name: tidemill.AttrModelVersion, Value: version},
			{Name: tidemill.AttrCorrelationID, Value: id}}}, nil
}

// sayUnloadable reports that a scorer cannot serve a version.
func (p *Platform) sayUnloadable(on *scoringModels, scorer, model string, version, kept int, reason error) {
	now, _ := on.champions.Champion(model)
	model, _ = champions.CutCanary(model)
	p.report(championReport{tidemill.TypeModelUnloadable, scorer, model, version, now,
		tidemill.ModelUnloadable{Scorer: scorer, Version: version, Kept: kept, Error: trialText(cmp.Or(errors.Unwrap(reason), reason))}})
}

// sayLoaded withdraws the report about a champion or a canary that is loaded now. This process may have made the
// report (told), or another one that has ended. The fact of another scorer withdraws nothing.
func (p *Platform) sayLoaded(on *scoringModels, scorer, model string, version int, told bool) {
	now, _ := on.champions.Champion(model)
	model, _ = champions.CutCanary(model)
	if now.Version == version && (told || now.Unserved) {
		p.report(championReport{tidemill.TypeModelLoaded, scorer, model, version, now, tidemill.ModelLoaded{Scorer: scorer, Version: version}})
	}
}

// report publishes the fact without waiting, because the caller is loading models.
func (p *Platform) report(r championReport) {
	failed := func(err error) {
		p.log.Error("scorer: reporting whether a champion can be loaded failed", "model", r.model, "version", r.version, "type", r.typ, "reason", err)
	}
	v, err := r.asEvent(p.names, time.Now())
	if err != nil {
		failed(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reportWithin)
	p.announcer.Send(ctx, tidemill.StreamFacts, &v, func(_ broker.Receipt, err error) {
		cancel()
		if err != nil {
			failed(err)
		}
	})
}
