package served

import (
	"sync"
	"time"

	"tidemill.dev/internal/champions"
	"tidemill.dev/internal/infer"
)

// State is how a slot stands.
type State int8

// The states.
const (
	Ready   State = iota // Use has returned a model
	Loading              // wait for Slot.Waiter, which is closed when it may have changed
	Missing              // the model has no champion
	Broken               // it has one, which cannot be loaded, and none before it can
)

// Slot is where a model's version stands. There may be twenty thousand: what most
// of them do not have is behind a pointer.
type Slot struct {
	models *Models
	name   string

	lock     sync.Mutex
	champion champion
	serving  *infer.Ref   // the version that answers; it may have left the memory. nil is none
	pinned   *infer.Model // the same, until it is used for the first time
	attempt  *attempt     // to load what shall answer; nil is none
	verdict  *verdict     // nil while nothing is unfit
	waiter   chan struct{}

	loose bool  // nobody else knows of it, since the model had no champion
	found *Slot // the model's, since it has one
}

// champion is what the table has told of the model.
type champion struct {
	version, previous int
	artifact          string // empty is not known
}

// alike reports whether two may be the same files. Versions count anew where a
// model was forgotten and is made again.
func alike(a, b string) bool { return a == b || a == "" || b == "" }

// verdict is which versions are unfit, for as long as the champion is the same.
type verdict struct {
	champion, previous int // 0 is none
	err                error
}

// Use is the version that answers now, which the caller releases. Where it is not
// in memory it begins to be loaded, in the background. It never waits.
func (s *Slot) Use() (*infer.Model, State) {
	if s.loose {
		if f := s.known(); f != nil {
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
	s.try()
	return nil, Loading
}

// Waiter is closed when a slot that was Loading may be otherwise.
func (s *Slot) Waiter() <-chan struct{} {
	if f := s.known(); f != nil {
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

// Err is why it is Broken, or why the last try to load failed that is made again.
func (s *Slot) Err() error {
	if f := s.known(); f != nil {
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

// known is the slot that stands in the place of a loose one since the model has a
// champion; nil for all others.
func (s *Slot) known() *Slot {
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

// target is the version that should answer: the champion, or the one before if it
// is unfit; 0 if neither can.
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

// look takes over what the table says. It reads it under the slot's lock: of two
// who look, the later one has the newer.
func (s *Slot) look() {
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

// changed acts on another champion. The slot's lock is held.
func (s *Slot) changed() {
	wanted := s.attempt != nil // somebody waits, or the champion before had to replace another
	s.stop()
	s.verdict = nil
	switch {
	case s.champion.version == 0:
		s.retire()
	case s.serving != nil && s.isChampion(s.serving):
		// Back before the other one was loaded: it goes on.
	case wanted || s.serving != nil && s.models.cache.Holds(s.serving):
		s.try()
		return
	default:
		// It has left the memory. Another model of the same files may bring it back,
		// and then it would answer, and nobody would load the champion.
		s.retire()
	}
	s.wake()
}

func (s *Slot) isChampion(r *infer.Ref) bool {
	return r.Version == s.champion.version && alike(r.Artifact, s.champion.artifact)
}

// retire has nothing answer.
func (s *Slot) retire() {
	s.unpin()
	if s.serving != nil {
		s.models.cache.Drop(s.serving)
		s.serving = nil
	}
}

// settle stops a version from answering that is older than what should: another
// process may have had it answer while it was being loaded here.
func (s *Slot) settle() {
	s.look()
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.serving != nil && !s.isChampion(s.serving) && s.serving.Version != s.target() {
		s.retire()
	}
}

// pinFor is how long a model that was loaded waits for its first use. The cache may
// not want to keep it, and who has waited for it must find it.
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

// end lets go of what is held, and of those who wait.
func (s *Slot) end() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.stop()
	s.unpin()
	s.wake()
}
