package realservers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// cached returns a folder of downloads and has it filled the first time. It
// appears by a rename, so it is complete or absent, whoever else asks. One is
// filled at a time: Maven's own folder is not for two at once.
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
	release, err := alone(filepath.Join(home, "download-lock"))
	if err != nil {
		return "", fmt.Errorf("wait for other downloads: %w", err)
	}
	defer release()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another was first
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
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) { // another was first, where nobody can be alone
		return "", fmt.Errorf("keep %s: %w", name, err)
	}
	return dir, nil
}
