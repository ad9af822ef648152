package platform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/internal/champions"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/served"
	"tidemill.dev/internal/store"
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
	all []*served.Models
}

func (e *ears) add(m *served.Models) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all[:len(e.all):len(e.all)], m)
}

func (e *ears) remove(m *served.Models) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := make([]*served.Models, 0, len(e.all))
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
