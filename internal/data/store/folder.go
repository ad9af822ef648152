package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// folder is a backend in a folder of this machine, or of a network file system.
type folder struct {
	dir string
	id  string // content of the file idFile; empty if this process could not write it
}

const (
	folderMode = 0o700
	fileMode   = 0o600
)

// openFolder creates the folder if it does not exist.
func openFolder(dir string) (folder, error) {
	f := folder{dir: dir}
	if i, err := os.Stat(dir); err == nil && !i.IsDir() {
		return f, fmt.Errorf("%s is not a folder", dir)
	}
	if err := os.MkdirAll(dir, folderMode); err != nil {
		return f, fmt.Errorf("create the folder: %w", err)
	}
	id, err := os.ReadFile(f.path(idFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = f.create(context.Background(), idFile, []byte(rand.Text()), func() {})
		if errors.Is(err, fs.ErrPermission) {
			return f, nil // the folder can only be read
		}
		if err == nil || errors.Is(err, errTaken) { // another process may be first
			id, err = os.ReadFile(f.path(idFile))
		}
	}
	if err != nil {
		return f, fmt.Errorf("mark the folder: %w", err)
	}
	f.id = string(id)
	return f, nil
}

// idFile marks a store with a random text. Without it, a process would take a store that was removed
// while it runs for an empty one.
const idFile = "store.id"

// ErrGone is returned if the store's folder was removed, emptied or replaced since it was opened.
var ErrGone = errors.New("was removed, emptied or replaced while it was in use; put it back, or start again without it")

// ErrFull is returned if the disk of the store's folder has no room for a write.
var ErrFull = errors.New("has no room left on its disk, and nothing is stored until there is some")

// full returns ErrFull if a write failed because the disk, or the user's share of it, is full.
func (f folder) full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("disk full: the store's folder %s %w", f.dir, ErrFull)
	}
	return err
}

// lost returns ErrGone if the folder is not the one that was opened.
func (f folder) lost() error {
	if f.id == "" {
		return nil
	}
	id, err := os.ReadFile(f.path(idFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(id) != f.id {
		return fmt.Errorf("the store's folder %s %w", f.dir, ErrGone)
	}
	return err
}

func (f folder) path(key string) string { return filepath.Join(f.dir, filepath.FromSlash(key)) }

func (f folder) close() {}

func (f folder) ping(context.Context) error {
	i, err := os.Stat(f.dir)
	if err == nil && !i.IsDir() {
		err = errors.New("it is not a folder")
	}
	return errors.Join(f.lost(), gone(err))
}

// write writes a temporary file next to the key's file and renames it.
func (f folder) write(ctx context.Context, key string, size int64, r io.Reader) error {
	at := f.path(key)
	temp, err := f.writeTemp(at, size, r)
	if err == nil {
		err = ctx.Err() // the caller may have left, and must not see the key change then
	}
	if err == nil {
		err = os.Rename(temp, at)
	}
	if err != nil {
		return errors.Join(f.full(err), discard(temp))
	}
	return nil
}

// writeTemp writes a temporary file next to another file, and returns the name of the temporary
// file as soon as it exists.
func (f folder) writeTemp(at string, size int64, r io.Reader) (string, error) {
	temp := at + "." + rand.Text() + tempEnd
	t, err := f.createIn(temp)
	if err != nil {
		return "", err
	}
	// A file's own ReadFrom would copy in small pieces.
	_, err = io.CopyBuffer(struct{ io.Writer }{t}, r, make([]byte, min(size+1, copyBuffer)))
	return temp, errors.Join(err, t.Close())
}

// createIn creates a file and its folder. A folder that another process removes because it is empty
// is created again.
func (f folder) createIn(at string) (t *os.File, err error) {
	for range 3 {
		t, err = os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
		if !errors.Is(err, fs.ErrNotExist) {
			return t, err
		}
		if err := f.lost(); err != nil {
			return nil, err // a new folder would look like an empty store
		}
		if err := os.MkdirAll(filepath.Dir(at), folderMode); err != nil {
			return nil, err
		}
	}
	return t, err
}

func discard(temp string) error {
	if temp == "" {
		return nil
	}
	return gone(os.Remove(temp))
}

// create hard-links a complete temporary file to the key's name. The file system lets only one
// caller succeed, among goroutines and processes alike.
func (f folder) create(_ context.Context, key string, data []byte, step func()) error {
	at := f.path(key)
	temp, err := f.writeTemp(at, int64(len(data)), bytes.NewReader(data))
	if err != nil {
		return errors.Join(f.full(err), discard(temp))
	}
	step()
	err = os.Link(temp, at)
	step()
	if errors.Is(err, fs.ErrExist) {
		err = errTaken
	} else if err != nil {
		err = fmt.Errorf("%w; the store's folder has to be on a file system with hard links", err)
	}
	return errors.Join(f.full(err), discard(temp))
}

// over writes into an existing file. A new file for each version would be slow: for minutes after
// files are removed, ext4 skips their inodes one by one whenever a file is created.
func (f folder) over(ctx context.Context, key string, data []byte) error {
	t, err := os.OpenFile(f.path(key), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return f.write(ctx, key, int64(len(data)), bytes.NewReader(data))
	}
	if err != nil {
		return err
	}
	_, err = t.Write(data)
	return f.full(errors.Join(err, t.Close()))
}

func (f folder) open(_ context.Context, key string) (io.ReadCloser, int64, error) {
	t, err := os.Open(f.path(key))
	if err != nil {
		return nil, 0, f.found(err)
	}
	i, err := t.Stat()
	if err == nil && i.IsDir() {
		err = ErrNotFound
	}
	if err != nil {
		return nil, 0, errors.Join(err, t.Close())
	}
	return t, i.Size(), nil
}

func (f folder) stat(_ context.Context, key string) (item, error) {
	i, err := os.Stat(f.path(key))
	if err == nil && i.IsDir() {
		err = ErrNotFound
	}
	if err != nil {
		return item{}, f.found(err)
	}
	return item{key: key, size: i.Size(), time: i.ModTime()}, nil
}

func (f folder) touch(_ context.Context, key string, now time.Time) error {
	return f.found(os.Chtimes(f.path(key), now, now))
}

func (f folder) remove(_ context.Context, key string) error { return f.found(os.Remove(f.path(key))) }

func (f folder) sign(context.Context, string, time.Duration) (string, error) { return "", nil }

// found maps the error that a file does not exist to ErrNotFound, or to ErrGone if all files are gone.
func (f folder) found(err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.lost(); err != nil {
		return err
	}
	return ErrNotFound
}

// listAll skips files that vanish while it lists; a file that cannot be read is an error.
func (f folder) listAll(ctx context.Context, prefix string, fn func(item) error) error {
	if err := f.lost(); err != nil {
		return fmt.Errorf("list %s: %w", prefix, err)
	}
	root := f.path(path.Dir(prefix + "x"))
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return gone(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		relative, err := filepath.Rel(f.dir, at)
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

func (f folder) prune(prefix string) error {
	root := f.path(strings.TrimSuffix(prefix, "/"))
	entries, err := os.ReadDir(root)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			return nil
		}
		if err := f.prune(prefix + e.Name() + "/"); err != nil {
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

func (f folder) pruneOne(prefix string) error {
	root := f.path(strings.TrimSuffix(prefix, "/"))
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
