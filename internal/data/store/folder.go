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

// These functions replace operations of gocloud.dev's driver for folders. Its IfNotExist locks a
// mutex of one writer, so two writers can both succeed. Its listing starts again for every page,
// and skips unreadable files, which a collection would take for absent ones.

func (b *bucket) path(key string) string { return filepath.Join(b.dir, filepath.FromSlash(key)) }

func pingFolder(dir string) error {
	i, err := os.Stat(dir)
	if err == nil && !i.IsDir() {
		err = errors.New("it is not a folder")
	}
	return err
}

// link creates a file by hard-linking a complete temporary file to its name. The file system lets
// only one caller succeed, among goroutines and processes alike.
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

// overwrite writes into an existing file. A new file for each version would be slow: for minutes
// after files are removed, ext4 skips their inodes one by one whenever a file is created.
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

// touch sets a file's time to now.
func (b *bucket) touch(key string, now time.Time) error {
	err := os.Chtimes(b.path(key), now, now)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}

// walk lists files. It skips files that vanish while it lists; a file that cannot be read is an
// error.
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

// prune removes a folder and the folders in it if no file is left there.
func (b *bucket) prune(prefix string) error {
	if b.dir == "" {
		return nil // other buckets have no folders
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
			return nil // another writer has added a file
		}
		return err
	}
	return nil
}

// pruneOne removes a folder if it is empty.
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
		return nil // another writer has added a file
	}
	return err
}

// gone ignores the error that a file does not exist.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
