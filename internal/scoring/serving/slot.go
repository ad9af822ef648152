package serving

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// State is the state of a slot.
type State int8

// States of a slot.
const (
	Ready   State = iota // Use has returned a model
	Loading              // the model is being loaded; Slot.Waiter is closed when that may have changed
	Missing              // the model has no champion
	Broken               // neither the champion nor the previous champion can be loaded
)

// Slot decides which version of one model answers. There may be twenty thousand slots,
// so rarely used fields are in separate structs.
type Slot struct {
	models *Models
	name   string

	lock     sync.Mutex
	champion champion
	serving  *infer.Ref   // version that answers, perhaps no longer in memory; nil if none
	pinned   *infer.Model // same version, until its first use
	attempt  *attempt     // load of the version that shall answer; nil if none
	verdict  *verdict     // nil while no version is unfit
	waiter   chan struct{}

	loose bool  // not remembered by Models, because the model had no champion
	found *Slot // remembered slot, once the model has a champion
}

// champion is the table's entry for the model.
type champion struct {
	version, previous int
	artifact          string // empty if unknown
}

// alike reports whether two versions may have the same files. Version numbers start
// again at 1 after a model was forgotten and made again.
func alike(a, b string) bool { return a == b || a == "" || b == "" }

// verdict names the unfit versions, as long as the champion is the same.
type verdict struct {
	champion, previous int // 0 if fit
	err                error
}

// Use returns the version that answers now. The caller releases it. If the version is
// not in memory, Use starts to load it in the background. It never waits.
func (s *Slot) Use() (*infer.Model, State) {
	if s.loose {
		if f := s.rememberedSlot(); f != nil {
			return f.Use()
		}
		return nil, Missing
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.serving != nil {
		if m := s.models.cache.Use(s.serving); m != nil {
			s.unpin()
			return m, Ready
		}
	}
	switch {
	case s.champion.version == 0:
		return nil, Missing
	case s.target() == 0:
		return nil, Broken
	}
	s.beginLoad()
	return nil, Loading
}

// Waiter returns a channel that is closed when the state of a Loading slot may have changed.
func (s *Slot) Waiter() <-chan struct{} {
	if f := s.rememberedSlot(); f != nil {
		return f.Waiter()
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.attempt == nil {
		return s.models.ready
	}
	if s.waiter == nil {
		s.waiter = make(chan struct{})
	}
	return s.waiter
}

// Err returns the reason why the slot is Broken, or the error of the last try that will
// be repeated.
func (s *Slot) Err() error {
	if f := s.rememberedSlot(); f != nil {
		return f.Err()
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	switch {
	case s.attempt != nil && s.attempt.err != nil:
		return s.attempt.err
	case s.verdict != nil:
		return s.verdict.err
	}
	return nil
}

// rememberedSlot returns the remembered slot that has replaced a loose one; nil for all others.
func (s *Slot) rememberedSlot() *Slot {
	if !s.loose {
		return nil
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.found == nil && s.models.hasChampion(s.name) {
		s.found = s.models.slot(s.name)
	}
	return s.found
}

// target returns the version that should answer: the champion, or the previous one if
// the champion is unfit; 0 if both are.
func (s *Slot) target() int {
	c, v := s.champion, s.verdict
	switch {
	case v == nil || v.champion != c.version:
		return c.version
	case c.previous == c.version || v.previous == c.previous:
		return 0
	}
	return c.previous
}

// readChampion reads the champion from the table. It does so under the slot's lock: of two
// concurrent callers, the later one sees the newer entry.
func (s *Slot) readChampion() {
	s.lock.Lock()
	defer s.lock.Unlock()
	now, ok := s.models.table.Champion(s.name)
	if !ok {
		now = champions.Champion{}
	}
	before := s.champion
	s.champion = champion{version: now.Version, previous: now.Previous, artifact: now.Artifact}
	if s.champion.version != before.version || !alike(s.champion.artifact, before.artifact) {
		s.changed()
	}
}

// changed handles a new champion. The caller holds the slot's lock.
func (s *Slot) changed() {
	wanted := s.attempt != nil // a caller waits, or the previous champion was about to be replaced
	s.stop()
	s.verdict = nil
	switch {
	case s.champion.version == 0:
		s.retire()
	case s.serving != nil && s.isChampion(s.serving):
		// A rollback before the newer champion was loaded: the serving version stays.
	case wanted || s.serving != nil && s.models.cache.Holds(s.serving):
		s.beginLoad()
		return
	default:
		// The version has left the memory. Another model with the same files may load
		// it again. The older version would then answer, and the champion would not be loaded.
		s.retire()
	}
	s.wake()
}

func (s *Slot) isChampion(r *infer.Ref) bool {
	return r.Version == s.champion.version && alike(r.Artifact, s.champion.artifact)
}

// retire leaves the slot without a version that answers.
func (s *Slot) retire() {
	s.unpin()
	if s.serving != nil {
		if !s.isServedElsewhere(s.serving) {
			s.models.cache.Drop(s.serving)
		}
		s.serving = nil
	}
}

// inMemory returns the version that answers now; 0 if none is in memory.
func (s *Slot) inMemory() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.answering()
}

// Last returns the version that has answered last, even if it has left the memory; 0 if none has.
func (s *Slot) Last() int {
	if f := s.rememberedSlot(); f != nil {
		return f.Last()
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.serving == nil {
		return 0
	}
	return s.serving.Version
}

// unload leaves the slot without a version, as if it had not been asked yet.
func (s *Slot) unload() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.retire()
}

// stopOlder stops a version from answering that is older than the target. Another process
// may already have answered with the target while it was being loaded here.
func (s *Slot) stopOlder() {
	s.readChampion()
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.serving != nil && !s.isChampion(s.serving) && s.serving.Version != s.target() {
		s.retire()
	}
}

// pinFor is the time that a loaded model is held for its first use. The cache may
// decide not to keep it, but the callers that waited for it must find it.
const pinFor = time.Second

func (s *Slot) pin(m *infer.Model) {
	s.unpin()
	s.pinned = m
	time.AfterFunc(pinFor, func() {
		s.lock.Lock()
		defer s.lock.Unlock()
		if s.pinned == m {
			s.unpin()
		}
	})
}

func (s *Slot) unpin() {
	if s.pinned != nil {
		s.pinned.Release()
		s.pinned = nil
	}
}

func (s *Slot) wake() {
	if s.waiter != nil {
		close(s.waiter)
		s.waiter = nil
	}
}

// releaseModels releases the held models and unblocks the waiting callers.
func (s *Slot) releaseModels() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.stop()
	s.unpin()
	s.wake()
}

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
	case errors.Is(err, infer.ErrUnfit), errors.Is(err, champions.ErrNoVersion) && a.version != s.champion.version: // the previous one is not kept
		s.attempt = nil
		kept := s.condemn(a.version, err)
		s.lock.Unlock()
		s.sayUnfit(a.version, kept, err)
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

// Refuse gives up a version that its caller cannot use, as if it could not be loaded.
func (s *Slot) Refuse(version int, err error) {
	err = fmt.Errorf("%w: %w", infer.ErrUnfit, err)
	s.lock.Lock()
	if s.serving == nil || s.serving.Version != version || s.champion.version != version {
		s.lock.Unlock()
		return // another version answers since
	}
	s.retire()
	kept := s.condemn(version, err)
	s.lock.Unlock()
	s.sayUnfit(version, kept, err)
}

func (s *Slot) sayUnfit(version, kept int, err error) {
	s.models.noteFailure(s.name, err)
	s.models.log.Warn("models: loading a version failed; the previous one answers, if there is one", "model", s.name, "version", version, "to", kept, "reason", err)
	s.models.unloadable(s.name, version, kept, err)
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

// condemn records that a version is unfit, and returns the version that answers in its
// place: the current one, else the previous champion, which is then loaded; 0 means none.
func (s *Slot) condemn(version int, err error) (kept int) {
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
