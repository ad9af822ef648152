package served

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"tidemill.dev/internal/infer"
)

// attempt is a load that goes on until it succeeds, is of no use, or is not wanted
// any more: then it is no longer the slot's, and what it brings is thrown away.
type attempt struct {
	version int
	cancel  context.CancelFunc
	timer   *time.Timer // until it is tried again; nil while it runs
	tries   int
	err     error // of the last try
}

// try begins to load what should answer, unless that is under way. The slot's lock
// is held.
func (s *Slot) try() {
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

// launch tries once. The slot's lock is held.
func (s *Slot) launch(a *attempt) {
	artifact := ""
	if a.version == s.champion.version {
		artifact = s.champion.artifact
	}
	ctx, cancel := context.WithCancel(s.models.ctx)
	a.cancel, a.timer = cancel, nil
	s.models.run(func() {
		defer cancel()
		m, err := s.load(ctx, a.version, artifact)
		s.tried(a, m, err)
	})
}

// stop ends an attempt. The slot's lock is held.
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
	return s.models.cache.Load(ctx, &infer.Ref{Model: s.name, Version: version, Artifact: artifact, Engine: s.models.engine})
}

// tried takes in what came of a try.
func (s *Slot) tried(a *attempt, m *infer.Model, err error) {
	s.lock.Lock()
	if s.attempt != a { // a newer champion has come meanwhile
		s.lock.Unlock()
		if m != nil {
			m.Release()
		}
		return
	}
	switch {
	case err == nil:
		s.swap(m)
	case errors.Is(err, infer.ErrUnfit):
		kept := s.condemn(err)
		s.lock.Unlock()
		s.models.log.Warn("a version cannot be loaded; the one before answers, if there is one", "model", s.name, "version", a.version, "to", kept, "reason", err)
		s.models.unloadable(s.name, a.version, kept, err)
		return
	default:
		s.again(a, err)
	}
	s.lock.Unlock()
}

// swap has another version answer from the next Use on. Who uses the one before
// goes on with it; the cache lets it go behind the last of them.
func (s *Slot) swap(m *infer.Model) {
	before, now := s.serving, *m.Ref() // a copy: the model's own would keep its weights alive
	s.attempt, s.serving = nil, &now
	s.pin(m)
	if before != nil && *before != now {
		s.models.cache.Drop(before)
	}
	s.wake()
}

// condemn notes that what was tried is unfit, and returns the version that answers
// in its place: the one that does now, else the one before the champion, which is
// loaded; 0 is none.
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
	if s.serving != nil && s.models.cache.Holds(s.serving) {
		s.wake()
		return s.serving.Version
	}
	if kept = s.target(); kept == 0 {
		s.wake()
	}
	s.try()
	return kept
}

// again puts an attempt off.
func (s *Slot) again(a *attempt, err error) {
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

// backoff is how long to wait after so many tries before. Some of it is by chance,
// so that not all models come at once when the store is back.
func backoff(tries int) time.Duration {
	d := min(firstBackoff<<min(tries, 10), mostBackoff)
	return d*3/4 + rand.N(d/4)
}
