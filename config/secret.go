package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// redacted replaces a secret wherever it is printed.
const redacted = "[secret]"

// Secret is a text that must not be printed. The text is inside a function: fmt prints
// unexported fields of other structs without calling their methods, and then shows only an
// address.
type Secret struct{ text func() string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text: func() string { return text }} }

// Reveal returns the text. Call it only where the text is used.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text()
}

// IsZero reports whether the text is empty.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Format prints [secret] for every verb.
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String returns [secret].
func (Secret) String() string { return redacted }

// MarshalText returns [secret] for JSON, YAML and XML.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns [secret] for logs.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

const (
	maxSecret = 1 << 20
	// settled is how old a file must be before its stamp proves that it has not changed since
	// it was read. A file that is written twice within one tick of the disk's clock may have
	// the same time both times.
	settled = 2 * time.Second
)

// SecretFile is a secret in a file that may change while the process runs: a rotated password
// or a mounted Kubernetes Secret. It is safe for concurrent use.
type SecretFile struct {
	path string

	mu     sync.Mutex
	secret Secret
	stamp  fs.FileInfo // stamp of the content in memory; nil if the file must be read again
}

// OpenSecret reads a secret file for the first time.
func OpenSecret(path string) (*SecretFile, error) {
	f := &SecretFile{path: path}
	if _, err := f.Get(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the file's content without the newline at its end. It reads the file again if it
// has changed. If that fails, Get returns the last good content and the error; the caller
// decides whether to continue with it.
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

// readSecret takes the stamp before the content. If the file changes in between, the stamp is
// too old and the next Get reads the file again. It returns no stamp if the file is so young
// that a change may not show in it.
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

// OwnSecret returns the content of a secret file that Tidemill makes itself. If the file is missing,
// OwnSecret makes it with the content of fresh. Only the file's owner may read it. The error about a
// wider file says what to do, because other users may have read the secret already.
func OwnSecret(path string, fresh func() []byte) ([]byte, error) {
	secret, err := readOwn(path, os.Geteuid())
	if errors.Is(err, fs.ErrNotExist) {
		secret = fresh()
		err = writeOwn(path, secret)
	}
	return secret, err
}

// Permissions of users other than the owner. Windows has no such permissions.
const (
	forOthers    = 0o077
	othersWrites = 0o022
)

// CheckFolder refuses a folder in which another user of the machine can place or replace files. Without that check
// the other user could give the secrets in it, or links to any file.
func CheckFolder(path string) error { return checkFolder(path, os.Geteuid()) }

func checkFolder(path string, uid int) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case isForeign(info, uid):
		return fmt.Errorf("the folder %s belongs to another user of this machine, who can replace its files: give another folder, or take it over with chown", path)
	case info.Mode().Perm()&othersWrites != 0 && runtime.GOOS != "windows":
		return fmt.Errorf("the permissions %04o of the folder %s let other users of this machine replace its files: give another folder; or, if no other user can have written to it, keep it with chmod go-w %s",
			info.Mode().Perm(), path, path)
	}
	return nil
}

// readOwn does not follow links, because another user may have made one.
func readOwn(path string, uid int) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file, or only a link to one: move it away, and the next start makes the file", path)
	case isForeign(info, uid):
		return nil, fmt.Errorf("%s belongs to another user of this machine, who knows its content: remove it, and the next start makes a new one", path)
	case info.Mode().Perm()&forOthers != 0 && runtime.GOOS != "windows":
		return nil, fmt.Errorf("the permissions %04o of %s let other users of this machine read it: remove it, and the next start makes a new one; or keep it with chmod 600 %s if no other user can have read it",
			info.Mode().Perm(), path, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSecret))
}

// writeOwn writes a new secret atomically. os.CreateTemp makes a file for its owner alone.
func writeOwn(path string, secret []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(secret)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

const (
	// maxAuthority bounds how many bytes after each "://" are searched, because a hostile text
	// may contain very many.
	maxAuthority = 1 << 10

	leakedPassword = "holds a URL with a password; secrets must not be in the config: " +
		"remove the password and give it in a file named by flag or environment, or by basicFile next to a trigger's url"
	leakedKey = "holds a private key; secrets must not be in the config: " +
		"put it into a file and name that file by flag or environment"
	leakedToken = "holds a token; a file holds at most its hash, which `tidemill token new` writes. " +
		"A token in this file is no longer secret: remove it and make a new one"
)

var (
	privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`)
	// token matches Tidemill's tokens, the beginning of one, and JWTs.
	token = regexp.MustCompile(`\btm_[A-Za-z0-9_-]{20,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.`)
)

// secretIn says which kind of secret a text contains, if its form shows it.
func secretIn(s string) string {
	// Most texts contain no such prefix, and there may be very many texts.
	if strings.Contains(s, "-----BEGIN") && privateKey.MatchString(s) {
		return leakedKey
	}
	if (strings.Contains(s, "tm_") || strings.Contains(s, "eyJ")) && token.MatchString(s) {
		return leakedToken
	}
	for rest := s; ; {
		_, after, ok := strings.Cut(rest, "://")
		if !ok {
			return ""
		}
		if hasPassword(after[:min(len(after), maxAuthority)]) {
			return leakedPassword
		}
		rest = after
	}
}

// hasPassword examines the text after "://". If a password contains an unescaped slash, the
// authority ends too early; then its apparent port is not a number.
func hasPassword(s string) bool {
	if i := strings.IndexAny(s, " \t\r\n\"'<>"); i >= 0 {
		s = s[:i]
	}
	authority := s
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		authority = s[:i]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		_, password, _ := strings.Cut(authority[:at], ":")
		return password != ""
	}
	_, port, ok := strings.Cut(authority, ":")
	return ok && strings.Contains(s, "@") && !strings.HasPrefix(authority, "[") &&
		strings.Trim(port, "0123456789") != ""
}
