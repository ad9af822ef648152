package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxSecretFile bounds what is read as a secret, so that a path to something
// else altogether is an error and not a full memory.
const maxSecretFile = 64 << 10

// readSecret reads a secret from its file, without the line end that editors
// add. It is called at each use, and nothing keeps what it returns.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, secretFileError(path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, secretFileError(path, err)
	}
	if len(b) > maxSecretFile {
		return nil, fmt.Errorf("read the password file %s: it is larger than %d bytes: is it the right file?", path, maxSecretFile)
	}
	if b = bytes.TrimRight(b, "\r\n"); len(b) == 0 {
		return nil, fmt.Errorf("read the password file %s: it is empty: write the password into it", path)
	}
	return b, nil
}

// secretFileError names the file only where it can be a file: the commonest
// mistake is to give the password itself in place of its file's path, and then
// the path is the secret.
func secretFileError(path string, err error) error {
	if cause := new(os.PathError); errors.As(err, &cause) {
		err = cause.Err
	}
	if !looksLikePath(path) {
		return fmt.Errorf("read the password file [secret]: %w: give the path of a file that holds the password, not the password", err)
	}
	return fmt.Errorf("read the password file %s: %w", path, err)
}

func looksLikePath(path string) bool {
	if !strings.ContainsRune(path, filepath.Separator) {
		return false
	}
	dir, err := os.Stat(filepath.Dir(path))
	return err == nil && dir.IsDir()
}
