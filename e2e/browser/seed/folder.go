package seed

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

//go:embed tidemill.yaml
var configText string // read only

//go:embed train.sh
var trainText string // read only

//go:embed *
var source embed.FS // read only

// Folder returns a folder with an install, which the first call of a week makes. The caller copies it with
// Copy before it starts tidemill up on it.
func Folder(ctx context.Context, size Size) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder: %w", err)
	}
	home := filepath.Join(cache, "tidemill")
	name, err := folderName(size, time.Now())
	if err != nil {
		return "", err
	}
	dir := filepath.Join(home, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := removeOld(home, size); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(home, "download-install-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the install: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := write(ctx, tmp, size); err != nil {
		return "", fmt.Errorf("make an install of %d keys: %w", size.Keys, err)
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another process may have made it
		return "", fmt.Errorf("keep the install: %w", err)
	}
	return dir, nil
}

// removeOld removes installs of earlier sources and weeks.
func removeOld(home string, size Size) error {
	if err := os.MkdirAll(home, 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(home, fmt.Sprintf("install-%d-*", size.Keys)))
	for _, dir := range old {
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}
	return err
}

// folderName contains a hash of this package and of the size, and the week.
func folderName(size Size, now time.Time) (string, error) {
	h := sha256.New()
	year, week := now.ISOWeek()
	fmt.Fprintln(h, size)
	err := fs.WalkDir(source, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := source.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		fmt.Fprintln(h, path)
		_, err = io.Copy(h, f)
		return err
	})
	return fmt.Sprintf("install-%d-%d-%02d-%s", size.Keys, year, week, hex.EncodeToString(h.Sum(nil))[:12]), err
}

// Copy copies an install to a folder that does not exist, because tidemill up changes it. The
// permissions stay, because Tidemill refuses passwords that others may read.
func Copy(from, to string) error {
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		below, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Mkdir(filepath.Join(to, below), info.Mode().Perm())
		}
		return copyFile(path, filepath.Join(to, below), info.Mode().Perm())
	})
	if err != nil {
		return fmt.Errorf("copy the install: %w", err)
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
