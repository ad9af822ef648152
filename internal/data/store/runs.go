package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"tidemill.dev/api"
)

// PutLog stores a chunk of an attempt's log. The same chunk put twice is there
// once; seq counts from 0.
func (s *Store) PutLog(ctx context.Context, run string, attempt, seq int, chunk []byte) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || seq < 0 {
		return invalid("chunk %d of the log of attempt %d of run %s cannot be: they count from 0 and 1", seq, attempt, run)
	}
	if err := s.bucket.put(ctx, logKey(run, attempt, seq), chunk); err != nil {
		return fmt.Errorf("put chunk %d of the log of attempt %d of run %s: %w", seq, attempt, run, err)
	}
	return nil
}

// ReadLog calls fn with the chunks of an attempt's log, from a number on, until
// there are no more for now.
func (s *Store) ReadLog(ctx context.Context, run string, attempt, from int, fn func(seq int, chunk []byte) error) error {
	if err := checkRun(run); err != nil {
		return err
	}
	for seq := max(from, 0); ; seq++ {
		chunk, err := s.bucket.get(ctx, logKey(run, attempt, seq))
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("read chunk %d of the log of attempt %d of run %s: %w", seq, attempt, run, err)
		}
		if err := fn(seq, chunk); err != nil {
			return err
		}
	}
}

// SetCheckpoint has a run go on from a tree. Each attempt has a place of its
// own, and the highest attempt's counts: one that was superseded and does not
// know changes nothing.
func (s *Store) SetCheckpoint(ctx context.Context, run string, attempt int, t api.TreeRef) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if attempt < 1 || checkDigest(t.Tree) != nil {
		return invalid("checkpoint %q of attempt %d of run %s cannot be", t.Tree, attempt, run)
	}
	data, err := json.Marshal(t)
	if err == nil {
		err = s.bucket.put(ctx, checkpointKey(run, attempt), data)
	}
	if err != nil {
		return fmt.Errorf("put the checkpoint of attempt %d of run %s: %w", attempt, run, err)
	}
	return nil
}

// Checkpoint is the newest of a run; ErrNotFound if there is none.
func (s *Store) Checkpoint(ctx context.Context, run string) (api.TreeRef, error) {
	if err := checkRun(run); err != nil {
		return api.TreeRef{}, err
	}
	newest := 0
	err := s.bucket.list(ctx, checkpointsOf(run), func(i item) error {
		if _, attempt, ok := cutCheckpoint(i.key); ok {
			newest = max(newest, attempt)
		}
		return nil
	})
	if err == nil && newest == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return api.TreeRef{}, fmt.Errorf("checkpoint of run %s: %w", run, err)
	}
	return s.checkpoint(ctx, checkpointKey(run, newest))
}

func (s *Store) checkpoint(ctx context.Context, key string) (t api.TreeRef, err error) {
	data, err := s.bucket.get(ctx, key)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		return t, fmt.Errorf("read checkpoint %s: %w", key, err)
	}
	return t, nil
}
