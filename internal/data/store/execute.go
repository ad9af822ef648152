package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
)

// execute removes what was condemned, and is still as old as it was: settle
// tells the race. Removing stops well before the list's time is up, so that no
// writer who waits that long can be surprised.
func (p *pass) execute(ctx context.Context, batch []item) error {
	if p.DryRun {
		for _, i := range batch {
			p.freed(i)
		}
		return nil
	}
	s := p.store
	list := condemned{Until: s.now().Add(condemnedFor)}
	for _, i := range batch {
		list.Keys = append(list.Keys, i.key)
	}
	key := condemnsPrefix + rand.Text()
	if err := s.setCondemned(ctx, key, list); err != nil {
		return err
	}
	limit, cancel := context.WithTimeoutCause(ctx, condemnedFor-condemnedMargin, errors.New("removing took too long: collect again for the rest"))
	defer cancel()
	var lock sync.Mutex
	err := each(limit, s.bucket.ways, batch, func(ctx context.Context, i item) error {
		gone, err := p.removeOld(ctx, i)
		if gone {
			lock.Lock()
			defer lock.Unlock()
			p.freed(i)
		}
		return err
	})
	if err != nil {
		return err // the list stands until its time is up: a request may still be on its way
	}
	list.Done = true
	return s.setCondemned(ctx, key, list)
}

func (p *pass) removeOld(ctx context.Context, i item) (gone bool, err error) {
	is, err := p.store.bucket.stat(ctx, i.key)
	if errors.Is(err, ErrNotFound) || err == nil && !p.old(is) {
		return false, nil
	}
	if err == nil {
		err = p.store.bucket.remove(ctx, i.key)
	}
	if err != nil {
		return false, fmt.Errorf("remove %s: %w", i.key, err)
	}
	return true, nil
}
