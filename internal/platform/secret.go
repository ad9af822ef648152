package platform

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tidemill.dev/internal/runs"
)

const (
	secretFile = "run-secret"
	secretSize = 32
)

// openTokens reads the secret that attempts' tokens are made with, and makes one
// where there is none yet.
func openTokens(dir string) (*runs.Tokens, error) {
	path := filepath.Join(dir, secretFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err = newSecret(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the secret of runs: %w", err)
	}
	if len(secret) != secretSize {
		return nil, fmt.Errorf("read the secret of runs: %s has %d bytes, not %d; remove it, and attempts under way start again", path, len(secret), secretSize)
	}
	return runs.NewTokens(secret)
}

// newSecret is in its place whole or not at all.
func newSecret(dir, path string) ([]byte, error) {
	secret := make([]byte, secretSize)
	rand.Read(secret) // it never fails
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, secretFile+"-")
	if err != nil {
		return nil, err
	}
	_, err = f.Write(secret)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return secret, nil
}
