package serving

import (
	"context"
	"errors"
	"time"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// attempt is a load with retries. It ends when it succeeds, when the version is unfit,
// or when it is no longer wanted. In the last case it is no longer the slot's attempt,
// and its result is discarded.
type attempt struct {
	version int
	cancel  context.CancelFunc
	timer   *time.Timer // timer of the next try; nil during a try
	tries   int
	err     error // last try's error
	told    bool  // whether Unloadable was called for it
}

// beginLoad begins to load the version that should answer, unless a load is running. The
// caller holds the slot's lock.
func (s *Slot) beginLoad() {
	if s.attempt != nil {
		return
	}
	a := &attempt{version: s.target()}
	if a.version == 0 {
		return
	}
	s.attempt = a
	s.launch(a)
}

// launch tries once. The caller holds the slot's lock.
func (s *Slot) launch(a *attempt) {
	artifact := ""
	if a.version == s.champion.version {
		artifact = s.champion.artifact
	}
	ctx, cancel := context.WithCancel(s.models.ctx)
	a.cancel, a.timer = cancel, nil
	s.models.runInBackground(func() {
		defer cancel()
		m, err := s.load(ctx, a.version, artifact)
		s.tried(a, m, err)
	})
}

// stop ends an attempt. The caller holds the slot's lock.
func (s *Slot) stop() {
	if a := s.attempt; a != nil {
		a.cancel()
		if a.timer != nil {
			a.timer.Stop()
		}
		s.attempt = nil
	}
}

func (s *Slot) load(ctx context.Context, version int, artifact string) (*infer.Model, error) {
	if artifact == "" {
		var err error
		if artifact, err = s.models.table.Artifact(ctx, s.name, version); err != nil {
			return nil, err
		}
	}
	return s.models.cache.Load(ctx, &infer.Ref{Model: s.model(), Version: version, Artifact: artifact, Engine: s.models.engine})
}

// tried handles the result of a try.
func (s *Slot) tried(a *attempt, m *infer.Model, err error) {
	s.lock.Lock()
	if s.attempt != a { // a newer champion has replaced this attempt
		s.lock.Unlock()
		if m != nil {
			m.Release()
		}
		return
	}
	switch {
	case err == nil:
		s.swap(m)
		s.lock.Unlock()
		s.models.loaded(s.name, a.version, a.told)
	case errors.Is(err, infer.ErrUnfit):
		s.models.noteFailure(s.name, err)
		kept := s.condemn(err)
		s.lock.Unlock()
		s.models.log.Warn("models: loading a version failed; the previous one answers, if there is one", "model", s.name, "version", a.version, "to", kept, "reason", err)
		s.models.unloadable(s.name, a.version, kept, err)
	case errors.Is(err, infer.ErrNoRuntime) && !a.told:
		a.told = true
		s.retryLater(a, err)
		s.wake() // callers that do not wait for an installation can give up
		kept := s.answering()
		s.lock.Unlock()
		s.models.unloadable(s.name, a.version, kept, err)
	default:
		s.retryLater(a, err)
		s.lock.Unlock()
	}
}

// model returns the model whose version the slot serves. The slot of a canary has another name than its model, so that
// its version is in the cache under the name by which it becomes the champion.
func (s *Slot) model() string {
	model, _ := champions.CutCanary(s.name)
	return model
}

// isServedElsewhere reports whether a version that this slot gives up is that of the model's other slot: a canary that
// has become the champion.
func (s *Slot) isServedElsewhere(r *infer.Ref) bool {
	model, canary := champions.CutCanary(s.name)
	if !canary {
		model = champions.CanaryName(s.name)
	}
	other, ok := s.models.table.Champion(model)
	return ok && other.Version == r.Version
}

// swap makes another version answer from the next Use on. Current users keep the old
// version, and the cache frees it after the last of them.
func (s *Slot) swap(m *infer.Model) {
	before, now := s.serving, *m.Ref() // a copy, because the model's own would keep its weights alive
	s.attempt, s.serving = nil, &now
	s.pin(m)
	s.models.forgetFailure(s.name)
	if before != nil && *before != now && !s.isServedElsewhere(before) {
		s.models.cache.Drop(before)
	}
	s.wake()
}

// condemn records that the tried version is unfit, and returns the version that answers in its
// place: the current one, else the previous champion, which is then loaded; 0 means none.
func (s *Slot) condemn(err error) (kept int) {
	version := s.attempt.version
	s.attempt = nil
	if s.verdict == nil {
		s.verdict = &verdict{}
	}
	s.verdict.err = errors.Join(s.verdict.err, err)
	if version == s.champion.version {
		s.verdict.champion = version
	} else {
		s.verdict.previous = version
	}
	if kept = s.answering(); kept != 0 {
		s.wake()
		return kept
	}
	if kept = s.target(); kept == 0 {
		s.wake()
	}
	s.beginLoad()
	return kept
}

// answering returns the version that answers now; 0 if none is in memory.
func (s *Slot) answering() int {
	if s.serving == nil || !s.models.cache.Holds(s.serving) {
		return 0
	}
	return s.serving.Version
}

// retryLater schedules the next try of an attempt.
func (s *Slot) retryLater(a *attempt, err error) {
	a.err = err
	after := backoff(a.tries)
	a.tries++
	s.models.sayFailed(s, a.version, after, err)
	a.timer = time.AfterFunc(after, func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.attempt == a {
			s.launch(a)
		}
	})
}

const (
	firstBackoff = 100 * time.Millisecond
	mostBackoff  = 10 * time.Second
)

// backoff returns the wait before the next try. It has a random part, so that not all
// models are loaded at once when the store is back.
func backoff(tries int) time.Duration {
	return retry.Backoff{First: firstBackoff, Cap: mostBackoff, Jitter: 0.25}.After(tries + 1)
}
