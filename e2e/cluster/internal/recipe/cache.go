package recipe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Cache is a folder with all built files: bin, images, manifests, debian.
type Cache string

// kit is built as a whole and kept.
type kit struct {
	prefix  string   // prefix of its folders' names
	folders []string // folders of this module that the build depends on
	make    func(maker, context.Context) error
}

// Build builds the cluster from the module in source, unless it is built already. One process
// builds at a time; the others wait for it and find the result.
func Build(ctx context.Context, source string, say func(string, ...any)) (Cache, error) {
	return kit{"cluster-", ownFolders[:], maker.all}.build(ctx, source, say)
}

// BuildKwok builds kwok, which few clusters need, and its stages.
func BuildKwok(ctx context.Context, source string, say func(string, ...any)) (Cache, error) {
	return kit{"kwok-", []string{"kwok", "internal/recipe"}, maker.kwok}.build(ctx, source, say)
}

func (k kit) build(ctx context.Context, source string, say func(string, ...any)) (Cache, error) {
	dir, err := k.cacheOf(source)
	if err != nil {
		return "", err
	}
	if whole(dir) {
		return Cache(dir), nil
	}
	release, err := k.alone(ctx, filepath.Dir(dir), say)
	if err != nil {
		return "", err
	}
	defer release()
	if whole(dir) {
		return Cache(dir), nil
	}
	if err := k.makeWhole(ctx, source, dir, say); err != nil {
		return "", err
	}
	return Cache(dir), k.forgetOthers(dir)
}

// makeWhole builds in another folder and renames it when it is complete, so that a folder with the
// final name is always good.
func (k kit) makeWhole(ctx context.Context, source, dir string, say func(string, ...any)) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("remove a half build: %w", err)
	}
	m := maker{source: source, dir: part, say: say}
	if err := k.make(m, ctx); err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	if err := os.Rename(part, dir); err != nil {
		return fmt.Errorf("put the build in place: %w", err)
	}
	return nil
}

func whole(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// alone waits until no other process builds.
func (k kit) alone(ctx context.Context, dir string, say func(string, ...any)) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, k.prefix+"lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	got := make(chan error, 1)
	go func() { got <- flock(file, say) }()
	select {
	case err = <-got:
	case <-ctx.Done():
		err = context.Cause(ctx) // the pending lock ends with the process
	}
	if err != nil {
		return nil, fmt.Errorf("wait for another build: %w", err)
	}
	return func() { file.Close() }, nil
}

func flock(file *os.File, say func(string, ...any)) error {
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return nil
	}
	say("another process builds; waiting for it")
	for {
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			return err
		}
	}
}

// forgetOthers removes the builds of other recipes, unless a sandbox runs from them.
func (k kit) forgetOthers(dir string) error {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(dir), k.prefix+"*"))
	if err != nil {
		return fmt.Errorf("look for old builds: %w", err)
	}
	var errs []error
	for _, other := range all {
		if other != dir && len(filepath.Base(other)) >= len(k.prefix)+hashLetters {
			errs = append(errs, forget(other))
		}
	}
	return errors.Join(errs...)
}

func forget(dir string) error {
	held, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("look whether an old build is used: %w", err)
	}
	defer held.Close()
	if syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove an old build: %w", err)
	}
	return nil
}

// Hold keeps the folder from being removed by a newer recipe, until the result is closed or the
// process ends.
func (c Cache) Hold() (io.Closer, error) {
	held, err := os.Open(string(c))
	if err != nil {
		return nil, fmt.Errorf("keep the build: %w", err)
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil || !whole(string(c)) {
		held.Close()
		return nil, fmt.Errorf("keep the build %s: another process removes it for a newer one; try again", c)
	}
	return held, nil
}

const hashLetters = 16

// cacheOf returns the folder for the content of the module in source.
func (k kit) cacheOf(source string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache: %w", err)
	}
	hash, err := k.hash(source)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "tidemill", k.prefix+hash), nil
}

// hash covers everything that a build depends on. Tests do not count.
func (k kit) hash(source string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOARCH, runtime.Version(), debianVersion())
	for _, name := range k.folders {
		err := filepath.WalkDir(filepath.Join(source, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			relative, _ := filepath.Rel(source, path)
			fmt.Fprintln(sum, relative, len(data))
			sum.Write(data)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("read what the cluster is built from: %w; run it in e2e/cluster", err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:hashLetters], nil
}

// debianVersion separates the caches of machines that share a home.
func debianVersion() string {
	data, err := os.ReadFile("/etc/debian_version")
	if err != nil {
		return "not Debian"
	}
	return strings.TrimSpace(string(data))
}
