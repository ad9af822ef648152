package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"tidemill.dev/api"
)

// edited is the result of an edit of a tree.
type edited struct {
	root  kid
	fresh map[string]made // nodes that the new tree has and the old tree lacks
	put   []api.File      // files that are new or changed
	count
}

type count struct{ added, changed, removed int }

// editor applies changes, in path order, to a tree. It opens only nodes where something changes.
type editor struct {
	*builder
	load loader
	put  []api.File
	count
}

// edit returns the tree of a root after changes; an empty root means the empty tree.
func edit(root string, changes []api.Change, load loader) (edited, error) {
	e := &editor{builder: newBuilder(), load: load}
	if err := e.tree(root, changes); err != nil {
		return edited{}, err
	}
	top, err := e.root(load)
	if err != nil {
		return edited{}, err
	}
	done := edited{root: top, fresh: e.builder.fresh(top.digest), put: e.put, count: e.count}
	return done, e.clashes(top.digest, changes)
}

func (e *editor) tree(root string, changes []api.Change) error {
	if root == "" {
		e.merge(nil, changes)
		return nil
	}
	n, err := e.load(root)
	if err != nil {
		return err
	}
	return e.below(n, changes)
}

// below applies changes to a node. Changes after the node's last path belong to it only if no node
// follows; the caller selects the changes.
func (e *editor) below(n *node, changes []api.Change) error {
	if n.level == 0 {
		e.merge(n.files, changes)
		return nil
	}
	for i, k := range n.kids {
		here := changes
		if i < len(n.kids)-1 {
			here = changes[:upTo(changes, k.last)]
		}
		changes = changes[len(here):]
		if err := e.one(k, n.level-1, here); err != nil {
			return err
		}
	}
	return nil
}

func (e *editor) one(k kid, level int, changes []api.Change) error {
	if len(changes) == 0 && e.aligned(level) {
		e.kid(level, k)
		return nil
	}
	n, err := e.load(k.digest)
	if err != nil {
		return err
	}
	return e.below(n, changes)
}

// upTo counts the changes up to and including a path.
func upTo(changes []api.Change, last string) int {
	n, found := slices.BinarySearchFunc(changes, last, func(c api.Change, p string) int { return strings.Compare(c.Path, p) })
	if found {
		n++
	}
	return n
}

// merge applies changes to the files of a node.
func (e *editor) merge(files []api.File, changes []api.Change) {
	for _, c := range changes {
		n, was := slices.BinarySearchFunc(files, c.Path, comparePath)
		for _, f := range files[:n] {
			e.file(f)
		}
		files = files[n:]
		var before *api.File
		if was {
			before, files = &files[0], files[1:]
		}
		e.change(before, c)
	}
	for _, f := range files {
		e.file(f)
	}
}

func comparePath(f api.File, path string) int { return strings.Compare(f.Path, path) }

func (e *editor) change(before *api.File, c api.Change) {
	switch {
	case c.Remove && before != nil:
		e.removed++
	case c.Remove:
	case before != nil && sameFile(*before, c.File):
		e.file(*before)
	default:
		if before == nil {
			e.added++
		} else {
			e.changed++
		}
		e.put = append(e.put, c.File)
		e.file(c.File)
	}
}

func sameFile(a, b api.File) bool {
	return a.Digest == b.Digest && a.Size == b.Size && a.Executable == b.Executable && slices.Equal(a.Parts, b.Parts)
}

// clashes finds a file that was put where a folder is, or below another file.
func (e *editor) clashes(root string, changes []api.Change) error {
	load := func(digest string) (*node, error) { return e.builder.load(digest, e.load) }
	looked := ""
	for _, c := range changes {
		if c.Remove {
			continue
		}
		if below, ok, err := firstBelow(load, root, c.Path); err != nil || ok {
			return clash(c.Path, below, err)
		}
		folder := c.Path[:max(strings.LastIndexByte(c.Path, '/'), 0)]
		if folder == looked {
			continue
		}
		looked = folder
		for ; folder != ""; folder = folder[:max(strings.LastIndexByte(folder, '/'), 0)] {
			if _, ok, err := findFile(load, root, folder); err != nil || ok {
				return clash(folder, c.Path, err)
			}
		}
	}
	return nil
}

func clash(file, below string, err error) error {
	if err != nil {
		return err
	}
	return invalid("%q cannot be a file, because %q is below it: remove one of them", file, below)
}

// execute removes condemned items that are still old; settle describes the race. Removing stops
// well before the list expires, so no writer that waits until then loses an object.
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
		return err // the list counts until it expires, because a request may still be in flight
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
