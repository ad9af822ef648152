package platform

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"tidemill.dev/internal/runs"
)

const (
	secretFile = "run-secret"
	// secretSpace keeps what our functions know the dispatcher by from ever being
	// an attempt's token.
	secretSpace = "functions"
)

// openTokens reads the secret that attempts' tokens are made with. Where none is
// given one is made in the data folder; a process with neither lets no agent in.
func (p *Platform) openTokens(w *works, o RunsOptions) error {
	var (
		secret []byte
		err    error
	)
	switch {
	case p.secretFile != "":
		secret, err = ReadSecret(p.secretFile)
	case o.Data != "":
		secret, err = ownSecret(o.Data)
	default:
		return nil
	}
	if err == nil {
		w.tokens, err = runs.NewTokens(secret)
	}
	return err
}

// bearer is what our functions know the dispatcher by, where they are processes
// of their own.
func (p *Platform) bearer() (string, error) {
	if p.functionsAt == "" {
		return "", nil
	}
	return p.functionsToken()
}

func (p *Platform) functionsToken() (string, error) {
	if p.secretFile == "" {
		return "", errors.New("call functions of ours in other processes: it takes the secret that they share; give --run-secret")
	}
	secret, err := ReadSecret(p.secretFile)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(secretSpace))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ReadSecret reads 32 bytes from a file, as they are or as base64.
func ReadSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the secret of runs: %w", err)
	}
	if len(text) == runs.SecretSize {
		return text, nil
	}
	coded := bytes.TrimRight(bytes.TrimSpace(text), "=")
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		secret, err := alphabet.AppendDecode(nil, coded)
		if err == nil && len(secret) == runs.SecretSize {
			return secret, nil
		}
	}
	return nil, fmt.Errorf("read the secret of runs: %s has %d bytes, which are neither %d nor the base64 of so many: write it with openssl rand -base64 %d",
		path, len(text), runs.SecretSize, runs.SecretSize)
}

// ownSecret reads the secret of a data folder, and makes one where there is none
// yet.
func ownSecret(dir string) ([]byte, error) {
	path := filepath.Join(dir, secretFile)
	secret, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret, err = newSecret(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the secret of runs: %w", err)
	}
	if len(secret) != runs.SecretSize {
		return nil, fmt.Errorf("read the secret of runs: %s has %d bytes, not %d; remove it, and attempts under way start again", path, len(secret), runs.SecretSize)
	}
	return secret, nil
}

// newSecret is in its place whole or not at all.
func newSecret(dir, path string) ([]byte, error) {
	secret := make([]byte, runs.SecretSize)
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
