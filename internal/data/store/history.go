package store

import (
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

// FindCommit finds a commit of a dataset by its id, or the beginning of it.
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

// find looks for an id as it is first, and then for ids that begin so.
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

// byID is nil for an id that was written before its commit, which then was not
// to be.
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

// Log calls fn with the commits of a branch, newest first, until it returns
// false. Behind a branch's first come those of the branch that it was made from.
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

// Branch makes a branch that begins with a commit, without an event. Its own
// first commit has the same tree, and that one as its parent.
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

// Datasets calls fn with those whose names begin with a prefix, in order.
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
