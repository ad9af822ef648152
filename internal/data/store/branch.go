package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
)

// Head returns the newest commit of a branch.
func (s *Store) Head(ctx context.Context, dataset, branch string) (api.Commit, error) {
	if err := checkBranch(dataset, branch); err != nil {
		return api.Commit{}, err
	}
	head, err := s.head(ctx, dataset, branch)
	if err == nil && head == nil {
		err = cmp.Or(s.bucket.gone(ctx, refKey(dataset, branch, 1)), fmt.Errorf("branch %s of dataset %s %w", branch, dataset, ErrNotFound))
	}
	if err != nil {
		return api.Commit{}, err
	}
	return head.Commit, nil
}

// head returns the newest record of a branch; nil if there is none. Commits of a branch are
// numbered without a gap, so it searches for the last number that exists. The hint is the start.
func (s *Store) head(ctx context.Context, dataset, branch string) (*record, error) {
	hint, err := s.hint(ctx, dataset, branch)
	if err != nil {
		return nil, err
	}
	rec, err := s.newest(ctx, dataset, branch, hint)
	if hint > 0 && errors.Is(err, ErrNotFound) {
		// The dataset was removed, and a slow writer wrote its hint after that.
		if err := s.bucket.gone(ctx, refKey(dataset, branch, hint)); err != nil {
			return nil, err
		}
		return s.newest(ctx, dataset, branch, 0)
	}
	return rec, err
}

// newest returns the newest record, starting at a number that is known to exist; nil if there is
// none.
func (s *Store) newest(ctx context.Context, dataset, branch string, known int64) (*record, error) {
	number, err := last(known, func(n int64) (bool, error) { return s.has(ctx, refKey(dataset, branch, n)) })
	if err != nil {
		return nil, fmt.Errorf("find the head of branch %s of dataset %s: %w", branch, dataset, err)
	}
	if number == 0 {
		return nil, nil
	}
	return s.record(ctx, dataset, branch, number)
}

func (s *Store) has(ctx context.Context, key string) (bool, error) {
	_, err := s.bucket.stat(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// last returns the last existing number; all numbers from 1 to the last exist, and so does known.
// It searches upwards in steps that double, and then bisects the last step.
func last(known int64, there func(int64) (bool, error)) (int64, error) {
	stride := int64(1)
	for {
		ok, err := there(known + stride)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		known += stride
		stride *= 2
	}
	for absent := known + stride; absent-known > 1; {
		middle := known + (absent-known)/2
		ok, err := there(middle)
		switch {
		case err != nil:
			return 0, err
		case ok:
			known = middle
		default:
			absent = middle
		}
	}
	return known, nil
}

// hint returns a number that the branch has certainly reached; 0 if there is no hint.
func (s *Store) hint(ctx context.Context, dataset, branch string) (int64, error) {
	data, err := s.bucket.get(ctx, headKey(dataset, branch))
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find the head of branch %s of dataset %s: %w", branch, dataset, err)
	}
	number, err := strconv.ParseInt(string(data), 10, 64)
	if err != nil || number < 0 {
		return 0, nil // a power cut can leave the file empty; the refs are authoritative
	}
	return number, nil
}

// setHint may overwrite the hint of a later commit: then the hint is too low for a while.
func (s *Store) setHint(ctx context.Context, rec *record) error {
	text := fmt.Appendf(nil, "%012d", rec.Number) // fixed length, so that it can be overwritten in place
	if err := s.bucket.over(ctx, headKey(rec.Dataset, rec.Branch), text); err != nil {
		return fmt.Errorf("write the head of branch %s of dataset %s: %w", rec.Branch, rec.Dataset, err)
	}
	return nil
}

// record reads a commit of a branch.
func (s *Store) record(ctx context.Context, dataset, branch string, number int64) (*record, error) {
	key := refKey(dataset, branch, number)
	data, err := s.bucket.get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("commit %d of branch %s of dataset %s: %w", number, branch, dataset, err)
	}
	rec, err := decodeRecord(key, data)
	if err == nil && rec.Dataset != dataset {
		return nil, invalid("commit %d of branch %s of dataset %s is one of dataset %s: the file system of the store takes the two names for one; give one of them another name, or use a store on another file system",
			number, branch, dataset, rec.Dataset)
	}
	return rec, err
}

// FindCommit finds a commit of a dataset by its id, or by the beginning of the id.
func (s *Store) FindCommit(ctx context.Context, dataset, id string) (api.Commit, error) {
	if err := tidemill.CheckDataset(dataset); err != nil {
		return api.Commit{}, invalid("dataset %q: %v", dataset, err)
	}
	if err := tidemill.CheckLabel(id); err != nil {
		return api.Commit{}, invalid("commit %q: %v", id, err)
	}
	rec, err := s.find(ctx, dataset, id)
	if err == nil && rec == nil {
		err = fmt.Errorf("commit %s of dataset %s %w", id, dataset, ErrNotFound)
	}
	if err != nil {
		return api.Commit{}, err
	}
	return rec.Commit, nil
}

// find looks for the exact id first, and then for ids that begin with it.
func (s *Store) find(ctx context.Context, dataset, id string) (*record, error) {
	if rec, err := s.byID(ctx, dataset, id); rec != nil || err != nil {
		return rec, err
	}
	var only *record
	err := s.bucket.list(ctx, idKey(dataset, id), func(i item) error {
		_, full, _ := cutName(i.key, idsPrefix)
		rec, err := s.byID(ctx, dataset, full)
		if rec != nil && only != nil {
			err = invalid("commit %s of dataset %s may be %s or %s: say more of it", id, dataset, only.ID, rec.ID)
		}
		if rec != nil {
			only = rec
		}
		return err
	})
	return only, err
}

// byID returns nil for an id whose commit was not made: the id is written first.
func (s *Store) byID(ctx context.Context, dataset, id string) (*record, error) {
	data, err := s.bucket.get(ctx, idKey(dataset, id))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find commit %s of dataset %s: %w", id, dataset, err)
	}
	branch, text, _ := strings.Cut(string(data), "/")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("where commit %s of dataset %s is %w", id, dataset, ErrCorrupt)
	}
	rec, err := s.record(ctx, dataset, branch, number)
	if errors.Is(err, ErrNotFound) || err == nil && rec.ID != id {
		return nil, nil
	}
	return rec, err
}

// Log calls fn with the commits of a branch, newest first, until fn returns false. After the
// branch's first commit come those of the branch that it was made from.
func (s *Store) Log(ctx context.Context, dataset, branch string, fn func(api.Commit) bool) error {
	if err := checkBranch(dataset, branch); err != nil {
		return err
	}
	rec, err := s.head(ctx, dataset, branch)
	if err == nil && rec == nil {
		err = fmt.Errorf("branch %s of dataset %s %w", branch, dataset, ErrNotFound)
	}
	for err == nil && rec != nil && fn(rec.Commit) {
		rec, err = s.parent(ctx, rec)
	}
	return err
}

func (s *Store) parent(ctx context.Context, rec *record) (*record, error) {
	switch {
	case rec.Number > 1:
		return s.record(ctx, rec.Dataset, rec.Branch, rec.Number-1)
	case rec.Parent == "":
		return nil, nil
	}
	return s.byID(ctx, rec.Dataset, rec.Parent)
}

// Branch creates a branch from a commit, without an event. The branch's own first commit has the
// same tree, and the given commit as its parent.
func (s *Store) Branch(ctx context.Context, dataset, branch string, at api.Commit) error {
	if err := checkBranch(dataset, branch); err != nil {
		return err
	}
	from, err := s.FindCommit(ctx, dataset, at.ID)
	if err != nil {
		return err
	}
	r := CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset, Branch: branch, Subject: from.Subject,
		Message: fmt.Sprintf("branched from %s/%d", from.Branch, from.Number)}}
	r.defaults(s.now())
	rec := next(nil, r, edited{root: kid{digest: from.Tree, files: from.Files, bytes: from.Bytes}})
	rec.Quiet, rec.Parent = true, from.ID
	err = s.claim(ctx, rec, s.now())
	if errors.Is(err, errTaken) {
		if _, gone := s.FindCommit(ctx, dataset, at.ID); gone != nil {
			return gone
		}
		return invalid("branch %s of dataset %s is there already", branch, dataset)
	}
	if err == nil {
		err = s.publish(ctx, rec, nil)
	}
	return err
}

// Dataset is a dataset and its branches.
type Dataset struct {
	Name     string
	Branches []string
}

// Datasets calls fn with the datasets whose names begin with a prefix, in order.
func (s *Store) Datasets(ctx context.Context, prefix string, fn func(Dataset) error) error {
	all := map[string][]string{}
	err := s.bucket.list(ctx, headsPrefix+prefix, func(i item) error {
		if dataset, branch, ok := cutName(i.key, headsPrefix); ok && strings.HasPrefix(dataset, prefix) && checkBranch(dataset, branch) == nil {
			all[dataset] = append(all[dataset], branch)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list datasets: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		slices.Sort(all[name])
		if err := fn(Dataset{Name: name, Branches: all[name]}); err != nil {
			return err
		}
	}
	return nil
}
