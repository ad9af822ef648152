package store

import (
	"context"
	"fmt"
	"path"
	"time"
)

// Collection says what to collect.
type Collection struct {
	Trees  []string          // to keep besides all commits: of live runs and kept versions
	Runs   func(string) bool // whether a run's log and checkpoint are kept; nil keeps all
	Older  time.Duration     // what is younger stays: it may be in use; at least the grace, which 0 means
	DryRun bool
}

// Collected is what was found.
type Collected struct {
	Objects, Kept, Removed int
	Bytes, Freed           int64
}

// Collect removes what nothing reaches. Commits and uploads may go on meanwhile.
func (s *Store) Collect(ctx context.Context, c Collection) (Collected, error) {
	if c.Older == 0 {
		c.Older = s.grace
	}
	if c.Older < s.grace {
		return Collected{}, invalid("collect what is older than %v: what is younger than %v may be in use by an upload, so name at least that", c.Older, s.grace)
	}
	if c.Runs == nil {
		c.Runs = func(string) bool { return true }
	}
	// What is made from here on is not reached by what is marked now. It is, or
	// has been made, younger than this.
	p := &pass{store: s, Collection: c, before: s.now().Add(-c.Older), reached: newReached()}
	if err := p.run(ctx); err != nil {
		return p.found, fmt.Errorf("collect: %w", err)
	}
	return p.found, nil
}

// pass is one collection.
type pass struct {
	store *Store
	Collection
	before  time.Time // what is older than that, and not reached, goes
	reached *reached
	runs    map[string]*keptRun
	found   Collected
}

// run marks, and only if all of that succeeded, sweeps.
func (p *pass) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		p.markCommits, p.markIntents, p.markTrees, p.markRuns, // and then
		p.sweepObjects, p.sweepTrees, p.sweepRuns, p.sweepRest,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) old(i item) bool { return i.time.Before(p.before) }

// sweepObjects and sweepTrees remove what is not reached.
func (p *pass) sweepObjects(ctx context.Context) error {
	return p.sweep(ctx, objectsPrefix, p.reached.objects)
}

func (p *pass) sweepTrees(ctx context.Context) error {
	return p.sweep(ctx, treesPrefix, p.reached.trees)
}

func (p *pass) sweep(ctx context.Context, prefix string, reached digests) error {
	var doomed []item
	err := p.store.bucket.listAll(ctx, prefix, func(i item) error {
		raw, ok := rawDigest(path.Base(i.key))
		p.count(i)
		if !p.old(i) || !ok && !isTemp(i.key) || ok && reached.has(raw) {
			return nil
		}
		if doomed = append(doomed, i); len(doomed) < condemnedAtOnce {
			return nil
		}
		batch := doomed
		doomed = nil
		return p.execute(ctx, batch)
	})
	if err == nil && len(doomed) > 0 {
		err = p.execute(ctx, doomed)
	}
	return err
}

func (p *pass) count(i item) {
	p.found.Objects++
	p.found.Kept++
	p.found.Bytes += i.size
}

func (p *pass) freed(i item) {
	p.found.Kept--
	p.found.Removed++
	p.found.Freed += i.size
}

// sweepRuns removes what runs left that are not kept.
func (p *pass) sweepRuns(ctx context.Context) error {
	for run, r := range p.runs {
		if r.kept || r.young {
			continue
		}
		if err := p.removeAll(ctx, r.files); err != nil {
			return err
		}
		if p.DryRun {
			continue
		}
		if err := p.store.bucket.prune(runsPrefix + run + "/"); err != nil {
			return fmt.Errorf("remove the folder of run %s: %w", run, err)
		}
	}
	return nil
}

// removeAll removes what nobody can come to need again.
func (p *pass) removeAll(ctx context.Context, all []item) error {
	for _, i := range all {
		p.freed(i)
	}
	if p.DryRun {
		return nil
	}
	return each(ctx, p.store.bucket.ways, all, func(ctx context.Context, i item) error {
		return p.store.bucket.remove(ctx, i.key)
	})
}

// sweepRest removes what writers that were killed left elsewhere: files that
// were not finished, places of commits that were not to be, and lists of
// collections that have ended.
func (p *pass) sweepRest(ctx context.Context) error {
	for _, prefix := range []string{refsPrefix, headsPrefix, idsPrefix, intentsPrefix} {
		var left []item
		err := p.store.bucket.listAll(ctx, prefix, func(i item) error {
			if p.leftover(prefix, i) {
				p.count(i)
				left = append(left, i)
			}
			return nil
		})
		if err == nil {
			err = p.removeAll(ctx, left)
		}
		if err != nil {
			return err
		}
	}
	return p.sweepLists(ctx)
}

func (p *pass) leftover(prefix string, i item) bool {
	lost := prefix == idsPrefix && !p.reached.ids[path.Base(i.key)]
	return p.old(i) && (isTemp(i.key) || lost)
}

// sweepLists removes what collections said that ended long ago, this one's too
// when another has its turn.
func (p *pass) sweepLists(ctx context.Context) error {
	if p.DryRun {
		return nil
	}
	lists, err := p.store.condemned(ctx)
	for key, i := range lists {
		if err == nil && p.store.now().Sub(i.time) > condemnedKept {
			err = p.store.bucket.remove(ctx, key)
		}
	}
	return err
}
