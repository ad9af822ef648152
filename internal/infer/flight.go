package infer

import (
	"context"
	"fmt"
	"time"
)

// flight is a load that is under way, for all who ask meanwhile.
type flight struct {
	cancel  context.CancelFunc
	waiting int           // under the shard's lock
	done    chan struct{} // closed behind what follows
	entry   *entry        // has counted those who wait as its users
	err     error
}

// Load brings a model into memory, once for all who ask meanwhile, and answers the
// golden request. Release it. What the cache does not keep lives until then. It
// does not count as a use: Use has, which found nothing. It ends if all who ask
// have left.
func (c *Cache) Load(ctx context.Context, r *Ref) (*Model, error) {
	k := r.key()
	s := c.shard(k)
	s.lock.Lock()
	if e := s.entries[k]; e != nil {
		e.users++
		defer s.lock.Unlock()
		return e.model(r), nil
	}
	f := s.flights[k]
	if f == nil {
		var err error
		if f, err = c.start(s, k, r); err != nil {
			s.lock.Unlock()
			return nil, err
		}
	}
	f.waiting++
	s.lock.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		if s.abandon(f, k) {
			return nil, fmt.Errorf("load %s: %w", r, context.Cause(ctx))
		}
		<-f.done // it is just being handed over
	}
	if f.err != nil {
		return nil, fmt.Errorf("load %s: %w", r, f.err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return f.entry.model(r), nil
}

// abandon has one fewer wait for a flight, which ends if nobody does any more;
// false if it has landed already.
func (s *shard) abandon(f *flight, k key) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if f.entry != nil || f.err != nil {
		return false
	}
	if f.waiting--; f.waiting == 0 {
		f.cancel()
		if s.flights[k] == f {
			delete(s.flights, k) // whoever asks now must not be told that others have left
		}
	}
	return true
}

// start begins a flight. The shard's lock is held.
func (c *Cache) start(s *shard, k key, r *Ref) (*flight, error) {
	c.begin.Lock()
	defer c.begin.Unlock()
	if c.closed {
		return nil, fmt.Errorf("load %s: %w", r, ErrClosed)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	s.flights[k] = f
	ref := *r
	c.running.Go(func() {
		defer cancel()
		m, err := c.make(ctx, k)
		if err != nil && c.ctx.Err() != nil {
			err = ErrClosed
		}
		c.land(s, ref, f, m, err)
		c.garbage.hold(c.held) // nobody waits for it: it may have to wait for a collection
	})
	return f, nil
}

// land hands over what a flight has brought.
func (c *Cache) land(s *shard, ref Ref, f *flight, m *loaded, err error) {
	k := ref.key()
	defer close(f.done)
	s.lock.Lock()
	if s.flights[k] == f {
		delete(s.flights, k)
	}
	if f.waiting == 0 && err == nil { // all have left, and perhaps another flight is under way
		s.lock.Unlock()
		m.program.Close()
		return
	}
	if f.err = err; err != nil {
		s.lock.Unlock()
		return
	}
	e := &entry{loaded: m, key: k, shard: s, users: f.waiting + 1} // itself, until the policy has decided
	e.weight = ref.popularity()
	f.entry, s.entries[k] = e, e
	s.outside.Add(e.bytes)
	s.lock.Unlock()
	if !c.policy.admit(e) {
		c.sayTooLarge(&ref, e.bytes)
	}
	e.release()
}

// sayEvery keeps a model that is loaded for each event from filling the log.
const sayEvery = time.Minute

func (c *Cache) sayTooLarge(r *Ref, bytes int64) {
	now, last := time.Now().UnixNano(), c.said.Load()
	if now-last > int64(sayEvery) && c.said.CompareAndSwap(last, now) {
		c.log.Warn("a model is larger than the memory for all models, so that it is loaded anew whenever it is needed", "model", r.Model, "version", r.Version,
			"want", bytes, "have", c.policy.mainBytes(), "next", "give more with --model-memory")
	}
}

func (c *Cache) held() int64 {
	c.policy.lock.Lock()
	defer c.policy.lock.Unlock()
	return c.policy.window.bytes + c.policy.main.bytes + c.outside.Load()
}
