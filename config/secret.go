package config

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// redacted is every printed form of a secret.
const redacted = "[secret]"

// Secret is a text that must not be printed. The text stands behind a function,
// so that fmt, which prints unexported fields of other structs without asking
// their methods, has nothing to show but an address.
type Secret struct{ text func() string }

// NewSecret guards a text.
func NewSecret(text string) Secret { return Secret{text: func() string { return text }} }

// Reveal gives the text, for the one call that needs it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text()
}

// IsZero reports whether there is no text.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Format prints every verb as [secret].
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String is [secret].
func (Secret) String() string { return redacted }

// MarshalText makes JSON, YAML and XML hold [secret].
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue logs [secret].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

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

const (
	// maxAuthority bounds the look behind each "://", for a hostile text may
	// have very many.
	maxAuthority = 1 << 10

	leakedPassword = "holds a URL with a password; secrets never stand in the config: " +
		"remove the password and give it in a file named by flag or environment, or by basicFile beside a trigger's url"
	leakedKey = "holds a private key; secrets never stand in the config: " +
		"put it into a file and name that file by flag or environment"
	leakedToken = "holds a token; a file holds at most its hash, which `tidemill token new` writes. " +
		"What stood here is no secret any more: remove the token and make a new one"
)

var (
	privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`)
	// token is one of ours, or the beginning of one; or a JWT.
	token = regexp.MustCompile(`\btm_[A-Za-z0-9_-]{20,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.`)
)

// secretIn says what secret a text holds, if any that can be told by its shape.
func secretIn(s string) string {
	// Most texts have no such beginning, and there may be very many texts.
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

// hasPassword looks at what follows "://". A password with an unescaped slash
// in it ends the authority too early; then what seems a port is no number.
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
