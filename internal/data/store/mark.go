package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// digests are a set; in raw bytes, since there may be millions.
type digests map[[32]byte]struct{}

func (d digests) has(raw [32]byte) bool { _, ok := d[raw]; return ok }

// reached is what something names.
type reached struct {
	lock           sync.Mutex
	objects, trees digests
	ids            map[string]bool // of commits
}

func newReached() *reached {
	return &reached{objects: digests{}, trees: digests{}, ids: map[string]bool{}}
}

// visit notes a tree's node, and reports whether it is new.
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

// tree marks a tree and all in it. Nodes that were marked before are passed
// over: commits share most of theirs.
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

// treeIfThere marks a tree that may be gone: then nothing can be reached by it.
func (p *pass) treeIfThere(ctx context.Context, digest string) error {
	if _, err := p.store.node(ctx, digest); errors.Is(err, ErrNotFound) {
		return nil
	}
	return p.tree(ctx, digest)
}

// listed are the keys below a prefix.
func (p *pass) listed(ctx context.Context, prefix string) (keys []string, err error) {
	err = p.store.bucket.list(ctx, prefix, func(i item) error {
		keys = append(keys, i.key)
		return nil
	})
	return keys, err
}

// markCommits marks what all commits reach, however old.
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

// markIntents marks what commits under way are about to reach.
func (p *pass) markIntents(ctx context.Context) error {
	intents, err := p.listed(ctx, intentsPrefix)
	if err != nil {
		return err
	}
	return each(ctx, p.store.bucket.ways, intents, func(ctx context.Context, key string) error {
		data, err := p.store.bucket.get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			return nil // it has ended
		}
		if err != nil {
			return err
		}
		rec, err := decodeRecord(key, data)
		if err != nil {
			return err
		}
		p.reached.commit(rec.ID)
		return p.treeIfThere(ctx, rec.Tree)
	})
}

func (p *pass) markTrees(ctx context.Context) error {
	return each(ctx, p.store.bucket.ways, p.Trees, p.treeIfThere)
}

// keptRun is what lies below the name of a run.
type keptRun struct {
	kept  bool
	young bool   // something was written lately
	files []item // if it is not kept
}

// markRuns looks at what runs left, and marks the checkpoints of those that are
// kept.
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

func (p *pass) markCheckpoint(ctx context.Context, key string) error {
	run, _, _ := cutCheckpoint(key)
	if r := p.runs[run]; !r.kept && !r.young {
		return nil
	}
	t, err := p.store.checkpoint(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.treeIfThere(ctx, t.Tree)
}
