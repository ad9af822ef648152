package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"tidemill.dev/api"
)

// Tree makes the tree of the files, whose objects must be there.
func (s *Store) Tree(ctx context.Context, files []api.File) (api.TreeRef, error) {
	changes := make([]api.Change, len(files))
	for i, f := range files {
		changes[i].File = f
	}
	e, err := s.edit(ctx, "", changes)
	if err == nil {
		err = s.settle(ctx, e)
	}
	if err != nil {
		return api.TreeRef{}, fmt.Errorf("make a tree of %d files: %w", len(files), err)
	}
	return e.root.ref(), nil
}

func (k kid) ref() api.TreeRef { return api.TreeRef{Tree: k.digest, Files: k.files, Bytes: k.bytes} }

// edit checks changes and carries them into a tree, in memory alone.
func (s *Store) edit(ctx context.Context, root string, changes []api.Change) (edited, error) {
	changes, err := inOrder(changes)
	if err != nil {
		return edited{}, err
	}
	return edit(root, changes, s.loader(ctx))
}

// inOrder checks changes and sorts them by path.
func inOrder(changes []api.Change) ([]api.Change, error) {
	sorted := slices.SortedFunc(slices.Values(changes), func(a, b api.Change) int { return cmp.Compare(a.Path, b.Path) })
	for i, c := range sorted {
		check := checkFile(c.File)
		if c.Remove {
			check = CheckPath(c.Path)
		}
		if check != nil {
			return nil, check
		}
		if i > 0 && sorted[i-1].Path == c.Path {
			return nil, invalid("path %q is named twice", c.Path)
		}
	}
	return sorted, nil
}

func (s *Store) loader(ctx context.Context) loader {
	return func(digest string) (*node, error) { return s.node(ctx, digest) }
}

// node gets a node of a tree, and makes sure that it is the one.
func (s *Store) node(ctx context.Context, digest string) (*node, error) {
	if n := s.nodes.get(digest); n != nil {
		return n, nil
	}
	if err := checkDigest(digest); err != nil {
		return nil, err
	}
	data, err := s.bucket.get(ctx, treeKey(digest))
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", digest, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("tree %s %w", digest, ErrCorrupt)
	}
	n, err := decodeNode(data)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w; a newer version may have written it", digest, err)
	}
	s.nodes.add(digest, n)
	return n, nil
}

// Walk calls fn with the files of a tree that lie at or below a path and behind
// after, in the order of their paths, until it returns an error.
func (s *Store) Walk(ctx context.Context, tree, path, after string, fn func(api.File) error) error {
	return below(s.loader(ctx), tree, path, after, fn)
}

// File finds a file of a tree.
func (s *Store) File(ctx context.Context, tree, path string) (api.File, error) {
	f, ok, err := findFile(s.loader(ctx), tree, path)
	if err == nil && !ok {
		err = fmt.Errorf("file %q of tree %s %w", path, tree, ErrNotFound)
	}
	return f, err
}

// TreeRef tells how many files and bytes a tree has.
func (s *Store) TreeRef(ctx context.Context, tree string) (api.TreeRef, error) {
	n, err := s.node(ctx, tree)
	if err != nil {
		return api.TreeRef{}, err
	}
	k := n.totals()
	k.digest = tree
	return k.ref(), nil
}

// Diff calls fn with what differs between two trees in the order of the paths;
// was or is is nil for a file that was added or removed. An empty tree is "".
func (s *Store) Diff(ctx context.Context, a, b string, fn func(was, is *api.File) error) error {
	return differences(s.loader(ctx), a, b, fn)
}
