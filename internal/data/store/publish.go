package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"tidemill.dev/api"
)

// claim makes a record the next of its branch, which is the commit point, or
// returns errTaken. Before it the intent is written, so that whoever looks after
// a crash knows of a commit that may be there and not announced. Who took half a
// grace since began may name what a collection has removed by now, and be
// without an intent: it begins anew.
func (s *Store) claim(ctx context.Context, rec *record, began time.Time) error {
	data, err := rec.encode()
	if err != nil {
		return err
	}
	if err := s.intend(ctx, rec, data); err != nil {
		return err
	}
	if s.now().Sub(began) > s.grace/2 {
		return errors.Join(errTaken, s.forget(ctx, rec))
	}
	if err := s.bucket.create(ctx, refKey(rec.Dataset, rec.Branch, rec.Number), data); err == nil {
		return nil
	} else if !errors.Is(err, errTaken) {
		return s.doubt(ctx, rec, err)
	}
	return s.doubt(ctx, rec, errTaken)
}

func (s *Store) intend(ctx context.Context, rec *record, data []byte) error {
	place := rec.Branch + "/" + strconv.FormatInt(rec.Number, 10)
	if err := s.bucket.put(ctx, idKey(rec.Dataset, rec.ID), []byte(place)); err != nil {
		return fmt.Errorf("write where commit %s will be: %w", rec.ID, err)
	}
	if err := s.bucket.put(ctx, intentKey(rec.ID), data); err != nil {
		return fmt.Errorf("write the intent of commit %s: %w", rec.ID, err)
	}
	return nil
}

// doubt finds out what became of a create that failed. Its own first try may
// have succeeded unheard, and the client's second one found the key taken.
func (s *Store) doubt(ctx context.Context, rec *record, why error) error {
	is, err := s.record(ctx, rec.Dataset, rec.Branch, rec.Number)
	switch {
	case err == nil && is.ID == rec.ID:
		return nil
	case err == nil:
		return errors.Join(errTaken, s.forget(ctx, rec))
	}
	// It may be there or not. The intent stays: Recover will know.
	return errors.Join(fmt.Errorf("commit %s is in doubt: say the same request again: %w", rec.ID, why), err)
}

// forget takes back what was written for a commit that is not to be.
func (s *Store) forget(ctx context.Context, rec *record) error {
	return errors.Join(s.bucket.remove(ctx, idKey(rec.Dataset, rec.ID)), s.bucket.remove(ctx, intentKey(rec.ID)))
}

// publish does what follows a commit. It goes on if who asked has left.
func (s *Store) publish(ctx context.Context, rec *record, announce func(context.Context, api.Commit) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWithin)
	defer cancel()
	if err := s.setHint(ctx, rec); err != nil {
		return err
	}
	if announce != nil && !rec.Quiet {
		if err := announce(ctx, rec.Commit); err != nil {
			return fmt.Errorf("announce commit %s, which stands; say the same request again: %w", rec.ID, err)
		}
	}
	if err := s.bucket.remove(ctx, intentKey(rec.ID)); err != nil {
		return fmt.Errorf("note that commit %s was announced: %w", rec.ID, err)
	}
	return nil
}

// Recover announces the commits whose announcement a crash has cut off. It may
// work beside writers: a commit can then be announced twice, and never not at
// all.
func (s *Store) Recover(ctx context.Context, announce func(context.Context, api.Commit) error) error {
	var intents []item
	err := s.bucket.list(ctx, intentsPrefix, func(i item) error {
		intents = append(intents, i)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for commits that are not announced: %w", err)
	}
	var failed []error
	for _, i := range intents {
		if err := s.recover(ctx, i, announce); err != nil {
			failed = append(failed, fmt.Errorf("recover %s: %w", i.key, err))
		}
	}
	return errors.Join(failed...)
}

// recover decides about one intent. One whose number is not taken is left: its
// writer may be about to take it, and would then have no intent. It costs
// nothing, and the branch's next commit decides about it.
func (s *Store) recover(ctx context.Context, i item, announce func(context.Context, api.Commit) error) error {
	data, err := s.bucket.get(ctx, i.key)
	if errors.Is(err, ErrNotFound) {
		return nil // its writer has ended
	}
	if err != nil {
		return err
	}
	rec, err := decodeRecord(i.key, data)
	if err != nil {
		return err
	}
	is, err := s.record(ctx, rec.Dataset, rec.Branch, rec.Number)
	switch {
	case errors.Is(err, ErrNotFound):
		return s.abandon(ctx, i, rec)
	case err != nil:
		return err
	case is.ID != rec.ID:
		return s.forget(ctx, rec)
	}
	return s.publish(ctx, rec, announce)
}

// abandon gives up an intent so old that its writer has given up as well.
func (s *Store) abandon(ctx context.Context, i item, rec *record) error {
	if s.now().Sub(i.time) < s.grace {
		return nil
	}
	return s.forget(ctx, rec)
}

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
