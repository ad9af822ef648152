package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cleaner cleans the container after an attempt, so that the next attempt finds only the image's
// files. It removes processes, the work folder, and new files in the folders for temporary files.
type cleaner struct {
	work  string
	alone bool // all processes but the first and this one are the command's
	was   map[string]map[string]bool
}

// newCleaner records the temporary files from before any attempt.
func newCleaner(work string, alone bool) *cleaner {
	b := &cleaner{work: work, alone: alone, was: map[string]map[string]bool{}}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		if !alone {
			break // other programs of the machine use these folders
		}
		if names, err := namesIn(dir); err == nil {
			b.was[dir] = names
		}
	}
	return b
}

func (b *cleaner) clean() error {
	var failed []error
	if b.alone {
		failed = append(failed, killOthers())
	}
	failed = append(failed, b.sweep(b.work, nil))
	for dir, was := range b.was {
		failed = append(failed, b.sweep(dir, was))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("clean up after the attempt: %w", err)
	}
	return nil
}

// sweep removes the files of a folder that were not there before. It keeps the folder itself,
// which is a mount.
func (b *cleaner) sweep(dir string, was map[string]bool) error {
	names, err := namesIn(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed []error
	for name := range names {
		if at := filepath.Join(dir, name); !was[name] && at != b.work {
			failed = append(failed, remove(at))
		}
	}
	return errors.Join(failed...)
}

// remove removes a file or folder, even with read-only folders in it.
func remove(at string) error {
	if os.RemoveAll(at) == nil {
		return nil
	}
	_ = filepath.WalkDir(at, func(name string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) // the second RemoveAll returns any error
		}
		return nil
	})
	return os.RemoveAll(at)
}

func namesIn(dir string) (map[string]bool, error) {
	all, err := os.ReadDir(dir)
	names := map[string]bool{}
	for _, e := range all {
		names[e.Name()] = true
	}
	return names, err
}
