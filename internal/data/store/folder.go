package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// What a folder needs and gocloud.dev's driver for folders does not give:
// IfNotExist locks a mutex of the writer's own there, so that two writers both
// win; its listing begins anew for every page and passes over what cannot be
// read, which a collection would take for what is not there.

func (b *bucket) path(key string) string { return filepath.Join(b.dir, filepath.FromSlash(key)) }

func pingFolder(dir string) error {
	i, err := os.Stat(dir)
	if err == nil && !i.IsDir() {
		err = errors.New("it is no folder")
	}
	return err
}

// link creates a file by giving a whole one its name: the file system lets one
// do so, among goroutines and processes alike.
func (b *bucket) link(key string, data []byte) (err error) {
	at := b.path(key)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	temp := at + "." + rand.Text() + tempEnd
	b.wrote(key)
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return errors.Join(err, gone(os.Remove(temp)))
	}
	b.wrote(key)
	err = os.Link(temp, at)
	b.wrote(key)
	if errors.Is(err, fs.ErrExist) {
		err = errTaken
	} else if err != nil {
		err = fmt.Errorf("%w; the store's folder has to be on a file system with hard links", err)
	}
	return errors.Join(err, gone(os.Remove(temp)))
}

// overwrite writes into a file that is there. A new file for each version would
// be dear: ext4 passes over the inodes of removed files for minutes, one by one,
// whenever a file is made.
func (b *bucket) overwrite(key string, data []byte) (done bool, err error) {
	f, err := os.OpenFile(b.path(key), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	b.wrote(key)
	_, err = f.Write(data)
	b.wrote(key)
	return true, errors.Join(err, f.Close())
}

func (b *bucket) statFile(key string) (item, error) {
	i, err := os.Stat(b.path(key))
	if errors.Is(err, fs.ErrNotExist) || err == nil && i.IsDir() {
		return item{}, ErrNotFound
	}
	if err != nil {
		return item{}, err
	}
	return item{key: key, size: i.Size(), time: i.ModTime()}, nil
}

// touch makes a file young.
func (b *bucket) touch(key string, now time.Time) error {
	err := os.Chtimes(b.path(key), now, now)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}

// walk lists files. What vanishes meanwhile is passed over, as a listing may;
// what cannot be read is an error.
func (b *bucket) walk(ctx context.Context, prefix string, fn func(item) error) error {
	root := b.path(path.Dir(prefix + "x"))
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return gone(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		relative, err := filepath.Rel(b.dir, at)
		if err != nil {
			return err
		}
		return visit(filepath.ToSlash(relative), prefix, d, fn)
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	return nil
}

func visit(key, prefix string, d fs.DirEntry, fn func(item) error) error {
	switch {
	case d.IsDir() && !strings.HasPrefix(key+"/", prefix) && !strings.HasPrefix(prefix, key+"/"):
		return fs.SkipDir
	case d.IsDir() || !strings.HasPrefix(key, prefix):
		return nil
	}
	i, err := d.Info()
	if err != nil {
		return gone(err)
	}
	return fn(item{key: key, size: i.Size(), time: i.ModTime()})
}

// prune removes a folder and those in it, if no file is left there.
func (b *bucket) prune(prefix string) error {
	if b.dir == "" {
		return nil // elsewhere folders are only a way to look at keys
	}
	root := b.path(strings.TrimSuffix(prefix, "/"))
	entries, err := os.ReadDir(root)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			return nil
		}
		if err := b.prune(prefix + e.Name() + "/"); err != nil {
			return err
		}
	}
	if err := os.Remove(root); err != nil && !errors.Is(err, fs.ErrNotExist) {
		if left, _ := os.ReadDir(root); len(left) > 0 {
			return nil // somebody wrote there
		}
		return err
	}
	return nil
}

// pruneOne removes a folder that is empty.
func (b *bucket) pruneOne(prefix string) error {
	if b.dir == "" {
		return nil
	}
	root := b.path(strings.TrimSuffix(prefix, "/"))
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		return gone(err)
	}
	err := gone(os.Remove(root))
	if left, _ := os.ReadDir(root); len(left) > 0 {
		return nil // somebody wrote there
	}
	return err
}

// gone takes what is not there any more for no error.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
