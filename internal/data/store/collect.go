package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// Collection configures a collection.
type Collection struct {
	Trees  []string          // trees to keep in addition to those of commits: trees of live runs and kept versions
	Runs   func(string) bool // whether a run's log and checkpoint are kept; nil keeps all
	Older  time.Duration     // least age of a removed object; the grace period is the default and the minimum
	DryRun bool
	Force  bool // whether to collect even if most of the newest runs are unknown
}

// Collected counts the results of a collection.
type Collected struct {
	Objects, Kept, Removed int
	Bytes, Freed           int64
}

// Collect removes everything that nothing references. Commits and uploads may run at the same time.
func (s *Store) Collect(ctx context.Context, c Collection) (Collected, error) {
	if c.Older == 0 {
		c.Older = s.grace
	}
	if c.Older < s.grace {
		return Collected{}, invalid("collect objects older than %v: objects younger than %v may be in use by an upload, so name at least that", c.Older, s.grace)
	}
	if c.Runs == nil {
		c.Runs = func(string) bool { return true }
	}
	// The marking below may miss references that are made from now on. The objects that they name
	// are younger than this time, or were made young.
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
	before  time.Time // time limit: unreached items that are older are removed
	reached *reached
	runs    map[string]*keptRun
	found   Collected
}

// run marks first, and sweeps only if all marking has succeeded.
func (p *pass) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		p.markCommits, p.markIntents, p.markTrees, p.markRuns, p.checkRuns, // marking steps, before the sweeping steps
		p.sweepObjects, p.sweepTrees, p.sweepRuns, p.sweepRest,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) old(i item) bool { return i.time.Before(p.before) }

// sweepObjects and sweepTrees remove unreached objects and trees.
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

// sweepRuns removes the logs and checkpoints of runs that are not kept.
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

// removeAll removes items that no process can need again.
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

// sweepRest removes other leftovers of killed writers: unfinished files, places of commits that
// were not made, and lists of collections that have ended.
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

// sweepLists removes the lists of collections that ended long ago; a later collection removes this
// one's.
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

// digests is a set, in raw bytes because it may have millions of entries.
type digests map[[32]byte]struct{}

func (d digests) has(raw [32]byte) bool { _, ok := d[raw]; return ok }

// reached holds everything that is referenced.
type reached struct {
	lock           sync.Mutex
	objects, trees digests
	ids            map[string]bool // ids of commits
}

func newReached() *reached {
	return &reached{objects: digests{}, trees: digests{}, ids: map[string]bool{}}
}

// visit marks a node of a tree, and reports whether it was unmarked.
func (r *reached) visit(digest string) bool {
	raw, _ := rawDigest(digest)
	r.lock.Lock()
	defer r.lock.Unlock()
	before := len(r.trees)
	r.trees[raw] = struct{}{}
	return len(r.trees) > before
}

func (r *reached) files(n *node) {
	objects := objectsOf(n.files)
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, o := range objects {
		raw, _ := rawDigest(o.Digest)
		r.objects[raw] = struct{}{}
	}
}

func (r *reached) commit(id string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.ids[id] = true
}

// tree marks a tree and everything in it. It skips marked nodes, because commits share most nodes.
func (p *pass) tree(ctx context.Context, digest string) error {
	if !p.reached.visit(digest) {
		return nil
	}
	n, err := p.store.node(ctx, digest)
	if err != nil {
		return err
	}
	p.reached.files(n)
	for _, k := range n.kids {
		if err := p.tree(ctx, k.digest); err != nil {
			return err
		}
	}
	return nil
}

// treeIfThere marks a tree that may be gone: then it references nothing.
func (p *pass) treeIfThere(ctx context.Context, digest string) error {
	if _, err := p.store.node(ctx, digest); errors.Is(err, ErrNotFound) {
		return nil
	}
	return p.tree(ctx, digest)
}

// listed returns the keys below a prefix.
func (p *pass) listed(ctx context.Context, prefix string) (keys []string, err error) {
	err = p.store.bucket.list(ctx, prefix, func(i item) error {
		keys = append(keys, i.key)
		return nil
	})
	return keys, err
}

// markCommits marks everything that commits reference, however old they are.
func (p *pass) markCommits(ctx context.Context) error {
	refs, err := p.listed(ctx, refsPrefix)
	if err != nil {
		return err
	}
	return each(ctx, p.store.bucket.ways, refs, func(ctx context.Context, key string) error {
		data, err := p.store.bucket.get(ctx, key)
		if err != nil {
			return fmt.Errorf("read commit %s: %w", key, err)
		}
		rec, err := decodeRecord(key, data)
		if err != nil {
			return err
		}
		p.reached.commit(rec.ID)
		if err := p.tree(ctx, rec.Tree); err != nil {
			return fmt.Errorf("commit %s: %w", key, err)
		}
		return nil
	})
}

// markIntents marks everything that unfinished commits are about to reference.
func (p *pass) markIntents(ctx context.Context) error {
	intents, err := p.listed(ctx, intentsPrefix)
	if err != nil {
		return err
	}
	return each(ctx, p.store.bucket.ways, intents, func(ctx context.Context, key string) error {
		data, err := p.store.bucket.get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			return nil // the writer has finished
		}
		if err != nil {
			return err
		}
		p.reached.commit(path.Base(key))
		rec, err := decodeRecord(key, data)
		if err != nil {
			return nil // a power cut has emptied it; see recoverUnread
		}
		return p.treeIfThere(ctx, rec.Tree)
	})
}

func (p *pass) markTrees(ctx context.Context) error {
	return each(ctx, p.store.bucket.ways, p.Trees, p.treeIfThere)
}

// keptRun describes the files of a run.
type keptRun struct {
	kept  bool
	young bool   // whether a file was written lately
	files []item // files of a run that is not kept
	last  time.Time
}

// markRuns lists the files of all runs, and marks the checkpoints of runs that are kept or young.
func (p *pass) markRuns(ctx context.Context) error {
	p.runs = map[string]*keptRun{}
	var checkpoints []string
	err := p.store.bucket.listAll(ctx, runsPrefix, func(i item) error {
		run, _, _ := strings.Cut(strings.TrimPrefix(i.key, runsPrefix), "/")
		r := p.runs[run]
		if r == nil {
			r = &keptRun{kept: p.Runs(run)}
			p.runs[run] = r
		}
		p.count(i)
		if !r.kept {
			r.files = append(r.files, i)
		}
		r.young = r.young || !p.old(i)
		if i.time.After(r.last) {
			r.last = i.time
		}
		if _, _, ok := cutCheckpoint(i.key); ok {
			checkpoints = append(checkpoints, i.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(ctx, p.store.bucket.ways, checkpoints, p.markCheckpoint)
}

// newestRuns is the number of the newest runs of which at least half must be known. The newest ten
// runs of each key are kept, so the newest ten of all keys are too, except those of forgotten keys.
const newestRuns = 10

// checkRuns refuses to remove anything if most of the newest runs are unknown. Then the list of
// known runs is probably not complete, or belongs to another store.
func (p *pass) checkRuns(context.Context) error {
	newest := slices.SortedFunc(maps.Keys(p.runs), func(a, b string) int { return p.runs[b].last.Compare(p.runs[a].last) })
	newest = newest[:min(len(newest), newestRuns)]
	unknown := slices.DeleteFunc(slices.Clone(newest), func(run string) bool { return p.runs[run].kept })
	if p.DryRun || p.Force || 2*len(unknown) <= len(newest) {
		return nil
	}
	return invalid("remove the files of %d of the %d newest runs, because the ledger does not know them (%s): is this the store of this install, and is its stream facts complete? If you are sure, use --force",
		len(unknown), len(newest), strings.Join(unknown[:min(len(unknown), 3)], ", "))
}

func (p *pass) markCheckpoint(ctx context.Context, key string) error {
	run, _, _ := cutCheckpoint(key)
	if r := p.runs[run]; !r.kept && !r.young {
		return nil
	}
	t, err := p.store.checkpoint(ctx, key)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrCorrupt) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.treeIfThere(ctx, t.Tree)
}

const (
	condemnedAtOnce = 1000
	condemnedEvery  = 50 * time.Millisecond // interval at which a waiting writer reads a list again
	// A collection removes the keys of a list within condemnedFor, less a margin for clocks, or
	// leaves them. After that the list no longer counts.
	condemnedFor    = 10 * time.Minute
	condemnedMargin = 5 * time.Minute
	condemnedKept   = time.Hour // time for which a finished list is kept
)

// condemned is a list of keys that a collection is about to remove.
type condemned struct {
	Until time.Time `json:"until"`
	Done  bool      `json:"done"`
	Keys  []string  `json:"keys"`

	unread bool // whether the list cannot be read, so that it may name every key
}

func (c *condemned) names(keys map[string]bool) bool {
	if c.unread {
		return true
	}
	for _, k := range c.Keys {
		if keys[k] {
			return true
		}
	}
	return false
}

// condemned returns all condemned lists that exist.
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

// finished returns the lists whose removals have ended. It caches them while they exist, so
// that each is read only once.
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

// condemn reads a list; nil if it no longer exists. An expired list counts as done.
func (s *Store) condemn(ctx context.Context, key string) (*condemned, error) {
	var c condemned
	data, err := s.bucket.find(ctx, key)
	if err == nil && json.Unmarshal(data, &c) != nil { // a power cut has emptied it
		var i item
		i, err = s.bucket.stat(ctx, key)
		c = condemned{Until: i.time.Add(condemnedFor), unread: true}
	}
	if errors.Is(err, ErrNotFound) {
		return nil, nil
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
		return fmt.Errorf("record the objects to remove: %w", err)
	}
	return nil
}
