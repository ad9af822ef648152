package config

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	maxSecret = 1 << 20
	// settled is how old a file must be before its stamp proves that it is the
	// one read: a file written twice within a tick of the disk's clock may show
	// one time for both.
	settled = 2 * time.Second
)

// SecretFile is a secret in a file that may change under us: a rotated
// password, a mounted Kubernetes Secret. It is safe for concurrent use.
type SecretFile struct {
	path string

	mu     sync.Mutex
	secret Secret
	stamp  fs.FileInfo // of the content held; nil if it must be read again
}

// OpenSecret reads a secret file for the first time.
func OpenSecret(path string) (*SecretFile, error) {
	f := &SecretFile{path: path}
	if _, err := f.Get(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get is the file's content without the newline at its end, read again if the
// file has changed. If it cannot be read, Get gives the last content that could
// be, and the error: the caller says whether to go on with it.
func (f *SecretFile) Get() (Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.isCurrent() {
		return f.secret, nil
	}
	secret, stamp, err := readSecret(f.path)
	if err != nil {
		f.stamp = nil
		return f.secret, fmt.Errorf("secret file: %w", err)
	}
	f.secret, f.stamp = secret, stamp
	return f.secret, nil
}

// isCurrent follows links, so a swapped link counts as a changed file.
func (f *SecretFile) isCurrent() bool {
	if f.stamp == nil {
		return false
	}
	now, err := os.Stat(f.path)
	return err == nil && os.SameFile(now, f.stamp) &&
		now.Size() == f.stamp.Size() && now.ModTime().Equal(f.stamp.ModTime())
}

// readSecret takes the stamp before the content: if the file changes between,
// the stamp is too old and the next Get reads again. It gives no stamp for a
// file so young that it may change without showing it.
func readSecret(path string) (Secret, fs.FileInfo, error) {
	file, err := os.Open(path)
	if err != nil {
		return Secret{}, nil, err
	}
	defer file.Close()
	stamp, err := file.Stat()
	if err != nil {
		return Secret{}, nil, err
	}
	if !stamp.Mode().IsRegular() {
		return Secret{}, nil, fmt.Errorf("%s is not a file; name the file that holds the secret", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSecret+1))
	if err != nil {
		return Secret{}, nil, err
	}
	text := strings.TrimRight(string(data), "\r\n")
	switch {
	case text == "":
		return Secret{}, nil, fmt.Errorf("%s is empty; write the secret into it", path)
	case len(data) > maxSecret:
		return Secret{}, nil, fmt.Errorf("%s is larger than %d KiB; is it the right file?", path, maxSecret>>10)
	}
	if time.Since(stamp.ModTime()) < settled {
		stamp = nil
	}
	return NewSecret(text), stamp, nil
}
