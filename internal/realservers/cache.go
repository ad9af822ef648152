package realservers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cached returns a folder of downloads and has it filled the first time. It
// appears by a rename, so it is complete or absent, whoever else asks.
func cached(name string, fill func(dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder: %w", err)
	}
	home := filepath.Join(cache, "tidemill")
	dir := filepath.Join(home, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	tmp, err := os.MkdirTemp(home, "download-")
	if err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", fmt.Errorf("make a folder for %s: %w", name, err)
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another was first
		return "", fmt.Errorf("keep %s: %w", name, err)
	}
	return dir, nil
}
