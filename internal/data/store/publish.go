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

// claim makes a record the next of its branch, which is the commit point, or returns errTaken. It
// writes the intent first, so that Recover finds a commit that exists and was not announced. If
// half of the grace period has passed since began, a collection may have removed objects of the
// tree, or the intent: then claim also returns errTaken, and the caller starts again. So it does if the
// dataset is removed meanwhile.
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
	err = s.bucket.create(ctx, refKey(rec.Dataset, rec.Branch, rec.Number), data)
	if err != nil {
		err = s.resolveDoubt(ctx, rec, err)
	}
	if err != nil {
		return err
	}
	orphan, err := s.isOrphan(ctx, rec)
	if err != nil {
		return fmt.Errorf("commit %s is in doubt: say the same request again: %w", rec.ID, err)
	}
	if orphan {
		return errors.Join(errTaken, s.removeOrphan(ctx, rec))
	}
	return nil
}

func (s *Store) removeOrphan(ctx context.Context, rec *record) error {
	return errors.Join(s.bucket.remove(ctx, refKey(rec.Dataset, rec.Branch, rec.Number)), s.forget(ctx, rec))
}

// isOrphan reports whether a record would bring back what a removal of its dataset has removed: the
// commit before it is another one, or the place of that commit's id is gone. A first commit brings
// nothing back, but nothing finds it without the place of its own id. A removal that has not come to
// the places, or begins later, finds the record.
func (s *Store) isOrphan(ctx context.Context, rec *record) (bool, error) {
	if rec.Parent == "" {
		return s.isUnplaced(ctx, rec, rec.ID)
	}
	parent, err := s.parent(ctx, rec)
	switch {
	case errors.Is(err, ErrCorrupt): // it is there
		return false, nil
	case errors.Is(err, ErrNotFound), err == nil && parent == nil:
		return s.isUnplaced(ctx, rec, rec.Parent)
	}
	return err == nil && parent.ID != rec.Parent, err
}

// isUnplaced reports whether the place of a commit's id is gone. A bucket that fails over may hide it
// from readers, but then it refuses to create it. The place created here names no commit.
func (s *Store) isUnplaced(ctx context.Context, rec *record, id string) (bool, error) {
	key, nowhere := idKey(rec.Dataset, id), rec.Branch+"/0"
	data, err := s.bucket.get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		if err = s.bucket.create(ctx, key, []byte(nowhere)); err == nil {
			return true, s.bucket.remove(ctx, key)
		}
	}
	if errors.Is(err, errTaken) { // perhaps by the first try of this create
		data, err = s.bucket.get(ctx, key)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, fmt.Errorf("look whether commit %s was removed: %w", id, err)
	}
	return string(data) == nowhere, nil
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

// resolveDoubt finds the result of a create that failed. The client's first try may have succeeded
// although its answer was lost, and the client's second try then found the key taken.
func (s *Store) resolveDoubt(ctx context.Context, rec *record, why error) error {
	is, err := s.record(ctx, rec.Dataset, rec.Branch, rec.Number)
	switch {
	case err == nil && is.ID == rec.ID:
		return nil
	case err == nil:
		return errors.Join(errTaken, s.forget(ctx, rec))
	}
	// The commit may exist or not. The intent stays, so that Recover can decide. The error is not ErrNotFound,
	// which would blame the files of the commit.
	return fmt.Errorf("commit %s is in doubt: say the same request again: %w; it could not be read: %v", rec.ID, why, err)
}

// forget removes the keys of a commit that is not made.
func (s *Store) forget(ctx context.Context, rec *record) error {
	return errors.Join(s.bucket.remove(ctx, idKey(rec.Dataset, rec.ID)), s.bucket.remove(ctx, intentKey(rec.ID)))
}

// publish does the work after the commit point. It continues if the caller has left.
func (s *Store) publish(ctx context.Context, rec *record, announce func(context.Context, api.Commit) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishWithin)
	defer cancel()
	if err := s.setHint(ctx, rec); err != nil {
		return err
	}
	if announce != nil && !rec.Quiet {
		if err := announce(ctx, rec.Commit); err != nil {
			return fmt.Errorf("announce commit %s, which is stored; send the same request again: %w", rec.ID, err)
		}
	}
	if err := s.bucket.remove(ctx, intentKey(rec.ID)); err != nil {
		return fmt.Errorf("note that commit %s was announced: %w", rec.ID, err)
	}
	return nil
}

// Recover announces commits whose announcement was cut off by a crash. It may run at the same time
// as writers: then a commit may be announced twice, but never not at all.
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

// recover decides about one intent. It leaves an intent whose number is free: its writer may be
// about to create the commit, and would then have no intent. The branch's next commit decides.
func (s *Store) recover(ctx context.Context, i item, announce func(context.Context, api.Commit) error) error {
	data, err := s.bucket.get(ctx, i.key)
	if errors.Is(err, ErrNotFound) {
		return nil // the writer has finished
	}
	if err != nil {
		return err
	}
	rec, err := decodeRecord(i.key, data)
	if err != nil {
		return s.recoverUnread(ctx, i, announce)
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
	return s.recoverMade(ctx, rec, announce)
}

// recoverMade announces a commit, unless its dataset was removed while it was made and its writer could not remove it
// again.
func (s *Store) recoverMade(ctx context.Context, rec *record, announce func(context.Context, api.Commit) error) error {
	orphan, err := s.isOrphan(ctx, rec)
	if err != nil {
		return err
	}
	if orphan {
		return s.removeOrphan(ctx, rec)
	}
	return s.publish(ctx, rec, announce)
}

// recoverUnread decides about an intent that a power cut has emptied. Its writer has ended with the machine, so its
// commit was made before, or never will be.
func (s *Store) recoverUnread(ctx context.Context, intent item, announce func(context.Context, api.Commit) error) error {
	var made *record
	err := s.bucket.list(ctx, refsPrefix, func(i item) error {
		data, err := s.bucket.get(ctx, i.key)
		if err != nil {
			return err
		}
		if rec, err := decodeRecord(i.key, data); err == nil && intentKey(rec.ID) == intent.key { // an unreadable commit is reported where it is used
			made = rec
			return errEnough
		}
		return nil
	})
	switch {
	case made != nil:
		return s.recoverMade(ctx, made, announce)
	case err != nil:
		return err
	}
	return s.bucket.remove(ctx, intent.key)
}

// abandon removes an intent that is so old that its writer has given up as well.
func (s *Store) abandon(ctx context.Context, i item, rec *record) error {
	if s.now().Sub(i.time) < s.grace {
		return nil
	}
	if err := s.bucket.gone(ctx, refKey(rec.Dataset, rec.Branch, rec.Number)); err != nil {
		return err
	}
	return s.forget(ctx, rec)
}

// settle makes sure that all parts of a new tree exist and stay: its objects, which clients have
// put, and its nodes. The tree may then be referenced for half of the grace period.
//
// The race: a collection finds an unreferenced object old; a writer puts it again; it looks young
// here; then the collection removes it. So a collection writes a list of keys before it removes
// them. settle makes everything young and checks that it exists, and only then reads the lists that
// were not finished before. If a list names a key of the tree, the collection may have looked at it
// before it was young: settle waits for that list to finish and checks again. If no list names a
// key, it was young when the collection looked, or settle has checked it after the removal.
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
		again, err := s.awaitRemovals(ctx, before, keys)
		if err != nil || !again {
			return err
		}
	}
}

const (
	manyObjects = 1000 // objects above which a tree waits for its turn
	manyTrees   = 4    // trees with so many new objects that are settled at a time
)

// ensure writes all nodes and makes all objects young; it fails if an object is missing. Of many large trees at the same time,
// each could take longer than its caller waits, and again at the next try. So only a few have their turn.
func (s *Store) ensure(ctx context.Context, e edited) error {
	objects := objectsOf(e.put)
	if len(objects) > manyObjects {
		select {
		case s.many <- struct{}{}:
			defer func() { <-s.many }()
		case <-ctx.Done():
			return fmt.Errorf("wait for other large trees: %w", context.Cause(ctx))
		}
	}
	missing, err := s.Missing(ctx, objects)
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

// awaitRemovals waits until no collection is about to remove one of the keys. It reports whether
// one may have been removed, so that the caller checks again.
func (s *Store) awaitRemovals(ctx context.Context, before map[string]bool, keys map[string]bool) (again bool, err error) {
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
			again, err = true, s.awaitFinished(ctx, key)
		}
	}
	return again, err
}

// awaitFinished waits until a collection has finished a list, or the list has expired.
func (s *Store) awaitFinished(ctx context.Context, key string) error {
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
