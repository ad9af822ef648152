package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
)

// Removed counts the branches and commits of a removed dataset.
type Removed struct {
	Branches, Commits int
}

// removeTries limits how often RemoveDataset starts again because of commits made meanwhile.
const removeTries = 10

// RemoveDataset removes a dataset: its commits, its branches and all keys that name them. The next
// collection removes the objects. If it is cut off, a dataset with less history remains, and a
// second call continues. Commits made meanwhile are removed too, or begin the dataset again.
func (s *Store) RemoveDataset(ctx context.Context, dataset string) (Removed, error) {
	var all Removed
	if err := tidemill.CheckDataset(dataset); err != nil {
		return all, invalid("dataset %q: %v", dataset, err)
	}
	for range removeTries {
		found, left, err := s.removeOnce(ctx, dataset)
		all.Branches, all.Commits = max(all.Branches, found.Branches), all.Commits+found.Commits
		if err != nil {
			return all, fmt.Errorf("remove dataset %s: %w", dataset, err)
		}
		if !left {
			return all, nil
		}
	}
	return all, fmt.Errorf("remove dataset %s: new commits to it keep coming; stop their writer, and remove it again", dataset)
}

// removeOnce removes all present keys, hints first. Without a hint a head is found by counting from
// the first commit, so it is right however many of the last commits are gone.
func (s *Store) removeOnce(ctx context.Context, dataset string) (found Removed, left bool, err error) {
	for _, step := range []func() (int, error){
		func() (int, error) { return s.removeBelow(ctx, headsPrefix+dataset+nameEnd) },
		func() (int, error) { return s.removeRefs(ctx, dataset, &found) },
		func() (int, error) { return s.removeBelow(ctx, idsPrefix+dataset+nameEnd) },
		func() (int, error) { return s.removeIntents(ctx, dataset) },
	} {
		n, err := step()
		if err != nil {
			return found, true, err
		}
		left = left || n > 0
	}
	for _, prefix := range []string{headsPrefix, refsPrefix, idsPrefix} {
		if err := s.pruneDataset(prefix, dataset); err != nil {
			return found, true, err
		}
	}
	return found, left, nil
}

// removeBelow removes everything below a prefix, also unfinished files.
func (s *Store) removeBelow(ctx context.Context, prefix string) (int, error) {
	var keys []string
	err := s.bucket.listAll(ctx, prefix, func(i item) error {
		keys = append(keys, i.key)
		return nil
	})
	if err == nil {
		err = each(ctx, s.bucket.ways, keys, s.bucket.remove)
	}
	return len(keys), err
}

// removeRefs removes the commits of each branch from the newest to the first, so that the rest is a
// branch at every moment.
func (s *Store) removeRefs(ctx context.Context, dataset string, found *Removed) (int, error) {
	branches := map[string][]string{}
	prefix, n := refsPrefix+dataset+nameEnd, 0
	err := s.bucket.listAll(ctx, prefix, func(i item) error {
		branch, _, _ := strings.Cut(strings.TrimPrefix(i.key, prefix), "/")
		branches[branch] = append(branches[branch], i.key)
		n++
		return nil
	})
	if err != nil {
		return n, err
	}
	for _, keys := range branches {
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(numberOf(b), numberOf(a)) })
		for _, key := range keys {
			if err := s.bucket.remove(ctx, key); err != nil {
				return n, err
			}
			if !isTemp(key) {
				found.Commits++
			}
		}
		found.Branches++
	}
	return n, nil
}

// numberOf returns the number in a commit's key. Unfinished files sort first.
func numberOf(key string) int64 {
	n, err := strconv.ParseInt(key[strings.LastIndexByte(key, '/')+1:], 10, 64)
	if err != nil {
		return 1 << 62
	}
	return n
}

// removeIntents reads all intents and removes those of the dataset.
func (s *Store) removeIntents(ctx context.Context, dataset string) (n int, err error) {
	var keys []string
	err = s.bucket.list(ctx, intentsPrefix, func(i item) error {
		keys = append(keys, i.key)
		return nil
	})
	for _, key := range keys {
		if err != nil {
			break
		}
		var data []byte
		if data, err = s.bucket.get(ctx, key); errors.Is(err, ErrNotFound) {
			err = nil // the writer has finished
			continue
		}
		if err != nil {
			break
		}
		if rec, unread := decodeRecord(key, data); unread == nil && rec.Dataset == dataset { // see recoverUnread
			n++
			err = s.bucket.remove(ctx, key)
		}
	}
	return n, err
}

// pruneDataset removes the folders of a dataset's name, except those that other datasets use.
func (s *Store) pruneDataset(prefix, dataset string) error {
	if err := s.bucket.prune(prefix + dataset + nameEnd); err != nil {
		return err
	}
	for at := dataset; at != ""; {
		if err := s.bucket.pruneOne(prefix + at + "/"); err != nil {
			return err
		}
		at = at[:max(strings.LastIndexByte(at, '/'), 0)]
	}
	return nil
}

// RemoveRun removes the logs and checkpoints of a run.
func (s *Store) RemoveRun(ctx context.Context, run string) error {
	if err := checkRun(run); err != nil {
		return err
	}
	prefix := runsPrefix + run + "/"
	_, err := s.removeBelow(ctx, prefix)
	if err == nil {
		err = s.bucket.prune(prefix)
	}
	if err != nil {
		return fmt.Errorf("remove what run %s has left: %w", run, err)
	}
	return nil
}

// CountDataset counts what RemoveDataset would remove.
func (s *Store) CountDataset(ctx context.Context, dataset string) (found Removed, err error) {
	if err := tidemill.CheckDataset(dataset); err != nil {
		return found, invalid("dataset %q: %v", dataset, err)
	}
	branches := map[string]bool{}
	prefix := refsPrefix + dataset + nameEnd
	err = s.bucket.list(ctx, prefix, func(i item) error {
		branch, _, _ := strings.Cut(strings.TrimPrefix(i.key, prefix), "/")
		branches[branch] = true
		found.Commits++
		return nil
	})
	if err != nil {
		return found, fmt.Errorf("look at dataset %s: %w", dataset, err)
	}
	found.Branches = len(branches)
	return found, nil
}

// PutNote stores data under a name, for a caller that continues after a crash.
func (s *Store) PutNote(ctx context.Context, name string, data []byte) error {
	if err := tidemill.CheckLabel(name); err != nil {
		return invalid("note %q: %v", name, err)
	}
	if err := s.bucket.put(ctx, notesPrefix+name, data); err != nil {
		return fmt.Errorf("put note %s: %w", name, err)
	}
	return nil
}

// Note returns the data stored under a name; ErrNotFound if there is none.
func (s *Store) Note(ctx context.Context, name string) ([]byte, error) {
	if err := tidemill.CheckLabel(name); err != nil {
		return nil, invalid("note %q: %v", name, err)
	}
	data, err := s.bucket.find(ctx, notesPrefix+name)
	if err != nil {
		return nil, fmt.Errorf("note %s: %w", name, err)
	}
	return data, nil
}

// RemoveNote removes the data stored under a name. It succeeds if there is none.
func (s *Store) RemoveNote(ctx context.Context, name string) error {
	if err := tidemill.CheckLabel(name); err != nil {
		return invalid("note %q: %v", name, err)
	}
	if err := s.bucket.remove(ctx, notesPrefix+name); err != nil {
		return fmt.Errorf("remove note %s: %w", name, err)
	}
	return nil
}
