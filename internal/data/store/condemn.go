package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

const (
	condemnedAtOnce = 1000
	condemnedEvery  = 50 * time.Millisecond // it is asked again
	// A collection removes what a list names within condemnedFor, less a margin
	// for clocks, or leaves it. After that the list counts no more.
	condemnedFor    = 10 * time.Minute
	condemnedMargin = 5 * time.Minute
	condemnedKept   = time.Hour // so long a list can be seen after its end
)

// condemned is a list of what a collection is about to remove.
type condemned struct {
	Until time.Time `json:"until"`
	Done  bool      `json:"done"`
	Keys  []string  `json:"keys"`
}

func (c *condemned) names(keys map[string]bool) bool {
	for _, k := range c.Keys {
		if keys[k] {
			return true
		}
	}
	return false
}

// condemned are the lists that there are.
func (s *Store) condemned(ctx context.Context) (map[string]item, error) {
	var all map[string]item
	err := s.bucket.list(ctx, condemnsPrefix, func(i item) error {
		if all == nil {
			all = map[string]item{}
		}
		all[i.key] = i
		return nil
	})
	return all, err
}

// finished are the lists that lead to no removal any more. They are remembered,
// as far as they are still there, so that each is read once.
func (s *Store) finished(ctx context.Context) (map[string]bool, error) {
	lists, err := s.condemned(ctx)
	if err != nil || len(lists) == 0 {
		return nil, err
	}
	s.listsLock.Lock()
	known := s.lists
	s.listsLock.Unlock()
	done := map[string]bool{}
	for key := range lists {
		if !known[key] {
			c, err := s.condemn(ctx, key)
			if err != nil {
				return nil, err
			}
			if c == nil || !c.Done {
				continue
			}
		}
		done[key] = true
	}
	s.listsLock.Lock()
	s.lists = done
	s.listsLock.Unlock()
	return done, nil
}

// condemn is a list; nil if it is no more, or counts no more.
func (s *Store) condemn(ctx context.Context, key string) (*condemned, error) {
	data, err := s.bucket.get(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	var c condemned
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, which a collection wrote: %w", key, err)
	}
	if s.now().After(c.Until) {
		c.Done = true
	}
	return &c, nil
}

func (s *Store) setCondemned(ctx context.Context, key string, c condemned) error {
	data, err := json.Marshal(c)
	if err == nil {
		err = s.bucket.put(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("say what is about to be removed: %w", err)
	}
	return nil
}
