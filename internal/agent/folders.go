package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"tidemill.dev/internal/api"
)

// folders are where an attempt works. To make one costs more than all else that
// a trivial run needs of the file system, so none is made that is not needed.
type folders struct{ work string }

func (f folders) in() string         { return filepath.Join(f.work, "in") }
func (f folders) out() string        { return filepath.Join(f.work, "out") }
func (f folders) checkpoint() string { return filepath.Join(f.work, "checkpoint") }
func (f folders) champion() string   { return filepath.Join(f.work, "champion") }
func (f folders) event() string      { return filepath.Join(f.work, "event.json") }
func (f folders) events() string     { return filepath.Join(f.work, "events.ndjson") }

// make makes them, that of the champion not among them. What lies there is of an
// attempt that was killed, and whose name this one has again.
func (f folders) make() error {
	if err := f.remove(); err != nil {
		return err
	}
	err := os.Mkdir(f.work, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(f.work, 0o700)
	}
	for _, dir := range []string{f.in(), f.out(), f.checkpoint()} {
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	return err
}

// remove takes all of it away. Where a folder may not be written to, it is made
// so first.
func (f folders) remove() error {
	for _, dir := range []string{f.in(), f.checkpoint()} {
		_ = os.Remove(dir) // most often it is empty, and this is the shortest way
	}
	err := os.RemoveAll(f.work)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(f.work, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) // what it leaves is told of by the second try
		}
		return nil
	})
	return os.RemoveAll(f.work)
}

// lock takes the right to write from files that were laid down, and from their
// folders.
func lock(root string, files []api.File) error {
	folders := map[string]bool{root: true}
	for i := range files {
		at := filepath.Join(root, filepath.FromSlash(files[i].Path))
		mode := fs.FileMode(0o444)
		if files[i].Executable {
			mode = 0o555
		}
		if err := os.Chmod(at, mode); err != nil {
			return err
		}
		for dir := filepath.Dir(at); !folders[dir]; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
	}
	for dir := range folders {
		if err := os.Chmod(dir, 0o555); err != nil {
			return err
		}
	}
	return nil
}
