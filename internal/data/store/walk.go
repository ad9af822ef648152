package store

import (
	"errors"
	"slices"
	"strings"

	"tidemill.dev/api"
)

// errEnough ends a walk without being an error.
var errEnough = errors.New("enough")

// walker calls fn with the files of a tree from one path up to another, in order.
type walker struct {
	load     loader
	from, to string // to is behind the last; empty is the end
	fn       func(api.File) error
}

func (w *walker) node(digest string) error {
	n, err := w.load(digest)
	if err != nil {
		return err
	}
	first, _ := slices.BinarySearchFunc(n.files, w.from, comparePath)
	for _, f := range n.files[first:] {
		if w.to != "" && f.Path >= w.to {
			return errEnough
		}
		if err := w.fn(f); err != nil {
			return err
		}
	}
	first, _ = slices.BinarySearchFunc(n.kids, w.from, compareLast)
	for _, k := range n.kids[min(first, len(n.kids)):] {
		if err := w.node(k.digest); err != nil {
			return err
		}
		if w.to != "" && k.last >= w.to {
			return errEnough
		}
	}
	return nil
}

func compareLast(k kid, path string) int { return strings.Compare(k.last, path) }

// between walks the files from a path on and before another.
func between(load loader, root, from, to string, fn func(api.File) error) error {
	if root == "" || to != "" && from >= to {
		return nil
	}
	w := walker{load: load, from: from, to: to, fn: fn}
	if err := w.node(root); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// below walks the file at a path and all files below it. "a-b" lies between "a"
// and "a/b", so these are two stretches.
func below(load loader, root, path, after string, fn func(api.File) error) error {
	least := ""
	if after != "" {
		least = after + "\x00" // the next that there could be
	}
	if path == "" {
		return between(load, root, least, "", fn)
	}
	if err := between(load, root, max(path, least), path+"\x00", fn); err != nil {
		return err
	}
	return between(load, root, max(path+"/", least), path+"0", fn) // 0 follows / in ASCII
}

// findFile finds the file of a path.
func findFile(load loader, root, path string) (found api.File, ok bool, err error) {
	err = between(load, root, path, path+"\x00", func(f api.File) error {
		found, ok = f, true
		return errEnough
	})
	return found, ok, err
}

// firstBelow is the first path below another.
func firstBelow(load loader, root, path string) (first string, ok bool, err error) {
	err = between(load, root, path+"/", path+"0", func(f api.File) error {
		first, ok = f.Path, true
		return errEnough
	})
	return first, ok, err
}
