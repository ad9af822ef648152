package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"tidemill.dev/api"
)

// Head is the newest commit of a branch.
func (s *Store) Head(ctx context.Context, dataset, branch string) (api.Commit, error) {
	if err := checkBranch(dataset, branch); err != nil {
		return api.Commit{}, err
	}
	head, err := s.head(ctx, dataset, branch)
	if err == nil && head == nil {
		err = fmt.Errorf("branch %s of dataset %s %w", branch, dataset, ErrNotFound)
	}
	if err != nil {
		return api.Commit{}, err
	}
	return head.Commit, nil
}

// head is the newest record of a branch; nil if there is none. Commits of a
// branch are numbered without a gap, so the newest is the one behind which there
// is none; the hint says where to begin.
func (s *Store) head(ctx context.Context, dataset, branch string) (*record, error) {
	hint, err := s.hint(ctx, dataset, branch)
	if err != nil {
		return nil, err
	}
	rec, err := s.newest(ctx, dataset, branch, hint)
	if hint > 0 && errors.Is(err, ErrNotFound) {
		// The dataset was removed, and a writer that was about to hint at its
		// commit did so behind that.
		return s.newest(ctx, dataset, branch, 0)
	}
	return rec, err
}

// newest is the newest record, from one on that is known to be there; nil if
// there is none.
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

// last is the last of the numbers from 1 on that are there, one of them known to
// be: it goes on in strides that double, and then halves the stretch.
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

// hint is a number that the branch has reached for certain; 0 if nobody has
// said.
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
		return 0, nil // a power cut can leave a file empty; the refs are the truth
	}
	return number, nil
}

// setHint may be overtaken by a later commit's: then it is too low for a while.
func (s *Store) setHint(ctx context.Context, rec *record) error {
	text := fmt.Appendf(nil, "%012d", rec.Number) // of one length, so that it can be written over
	if err := s.bucket.over(ctx, headKey(rec.Dataset, rec.Branch), text); err != nil {
		return fmt.Errorf("say where the head of branch %s of dataset %s is: %w", rec.Branch, rec.Dataset, err)
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
	return decodeRecord(key, data)
}
