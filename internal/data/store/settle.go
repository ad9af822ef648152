package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev/api"
)

// settle sees to it that all that a new tree consists of is there and stays: its
// objects, which others have put, and its nodes. Whoever names the tree from
// now on may do so for half a grace.
//
// The race: a collection looks at an object nobody names, and finds it old;
// somebody puts it anew; it looks young here; now the collection removes it.
// So a collection says first what it is about to remove, and lets that stand.
// Here everything is made young and looked for. Only then are the lists read
// that were not finished before: what one of them names may have been looked at
// before it was young, and is looked for again when that list is finished. What
// none names was young when a collection looked, or was looked for behind it.
func (s *Store) settle(ctx context.Context, e edited) error {
	keys := e.keys()
	for {
		before, err := s.finished(ctx)
		if err != nil {
			return err
		}
		if err := s.ensure(ctx, e); err != nil {
			return err
		}
		again, err := s.spared(ctx, before, keys)
		if err != nil || !again {
			return err
		}
	}
}

// ensure makes everything present and young.
func (s *Store) ensure(ctx context.Context, e edited) error {
	missing, err := s.Missing(ctx, objectsOf(e.put))
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("object %s%s %w", missing[0].Digest, more(missing), ErrMissing)
	}
	digests := slices.Collect(maps.Keys(e.fresh))
	return each(ctx, s.bucket.ways, digests, func(ctx context.Context, digest string) error {
		m := e.fresh[digest]
		s.nodes.add(digest, m.node)
		if err := s.bucket.put(ctx, treeKey(digest), m.data); err != nil {
			return fmt.Errorf("put tree %s: %w", digest, err)
		}
		return nil
	})
}

func more(missing []api.Part) string {
	if len(missing) == 1 {
		return ""
	}
	return fmt.Sprintf(" and %d more", len(missing)-1)
}

func (e edited) keys() map[string]bool {
	all := map[string]bool{}
	for _, o := range objectsOf(e.put) {
		all[objectKey(o.Digest)] = true
	}
	for digest := range e.fresh {
		all[treeKey(digest)] = true
	}
	return all
}

// spared waits until no collection is about to remove any of the keys, and
// reports whether one may have, so that it has to be looked again.
func (s *Store) spared(ctx context.Context, before map[string]bool, keys map[string]bool) (again bool, err error) {
	lists, err := s.condemned(ctx)
	for key := range lists {
		if err != nil {
			return false, err
		}
		if before[key] {
			continue
		}
		var c *condemned
		if c, err = s.condemn(ctx, key); c != nil && c.names(keys) {
			again, err = true, s.outlive(ctx, key)
		}
	}
	return again, err
}

// outlive waits until a collection has ended what it was about to do, or has
// itself ended without saying so.
func (s *Store) outlive(ctx context.Context, key string) error {
	tick := time.NewTicker(condemnedEvery)
	defer tick.Stop()
	for {
		c, err := s.condemn(ctx, key)
		if err != nil || c == nil || c.Done {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until a collection has removed its objects: %w", context.Cause(ctx))
		}
	}
}
