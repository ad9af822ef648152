package infer

import (
	"slices"
	"sync"
	"sync/atomic"
)

// entry is a model in memory, under all the names that it was asked for by.
//
// Whoever uses it counts, under its shard's lock. It stays while it is kept, which
// the policy decides, or used: so nothing is closed that runs, and what was pushed
// out is found by others until its last user has left.
type entry struct {
	*loaded
	key   key
	shard *shard

	users  int      // under the shard's lock, as is what follows
	models []*Model // one for each Ref; nearly always one
	kept   bool

	touched atomic.Bool // since the policy looked last
	place               // the policy's
}

// shard is a part of the models, by key, with a lock of its own, which nobody
// holds for longer than it takes to look something up.
type shard struct {
	lock    sync.Mutex
	entries map[key]*entry
	flights map[key]*flight
	hits    uint64
	misses  uint64
	outside *atomic.Int64 // bytes that are used and not kept
}

// model is the entry under a name. The shard's lock is held.
func (e *entry) model(r *Ref) *Model {
	for _, m := range e.models {
		if m.ref.Version == r.Version && m.ref.Model == r.Model {
			return m
		}
	}
	m := &Model{ref: *r, popular: r.popularity(), held: e}
	e.models = append(e.models, m)
	return m
}

// unname takes a name from an entry; true if it was the last. Who uses the model by
// that name goes on. The shard's lock is held.
func (e *entry) unname(r *Ref) bool {
	had := len(e.models)
	e.models = slices.DeleteFunc(e.models, func(m *Model) bool { return m.ref.Version == r.Version && m.ref.Model == r.Model })
	return len(e.models) < had && len(e.models) == 0
}

func (e *entry) release() {
	s := e.shard
	s.lock.Lock()
	e.users--
	last := e.users == 0 && !e.kept
	if last {
		s.forget(e)
	}
	s.lock.Unlock()
	if last {
		e.program.Close()
	}
}

// forget takes an entry that nobody uses and nothing keeps out of the map.
func (s *shard) forget(e *entry) {
	s.outside.Add(-e.bytes)
	if s.entries[e.key] == e {
		delete(s.entries, e.key)
	}
}

// keep has an entry stay without users, or no longer.
func (e *entry) keep(kept bool) {
	s := e.shard
	s.lock.Lock()
	was := e.kept
	e.kept = kept
	if was != kept && kept {
		s.outside.Add(-e.bytes)
	} else if was != kept {
		s.outside.Add(e.bytes)
	}
	last := was && !kept && e.users == 0
	if last {
		s.forget(e)
	}
	s.lock.Unlock()
	if last {
		e.program.Close()
	}
}

func (e *entry) used() bool {
	e.shard.lock.Lock()
	defer e.shard.lock.Unlock()
	return e.users > 0
}
