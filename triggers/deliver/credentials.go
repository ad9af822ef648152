package deliver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"tidemill.dev/config"
)

// credentials sign a trigger's requests with the content of a file.
type credentials struct {
	header string // header name in canonical form
	file   *secretFile
	form   func(secret string) (signature, error)
	last   atomic.Pointer[signature]
}

// signature is a header's value, computed once for each secret.
type signature struct {
	secret string
	values []string // values of the header
	hidden secrets
}

// newCredentials returns nil for a subscriber without credentials.
func newCredentials(c config.Credentials) *credentials {
	switch {
	case c.BearerFile != "":
		return &credentials{header: "Authorization", file: newSecretFile("bearerFile", c.BearerFile), form: bearer}
	case c.BasicFile != "":
		return &credentials{header: "Authorization", file: newSecretFile("basicFile", c.BasicFile), form: basic}
	case c.HeaderFile != "":
		return &credentials{header: http.CanonicalHeaderKey(c.Header), file: newSecretFile("headerFile", c.HeaderFile), form: plain}
	}
	return nil
}

// sign sets the header and returns the secrets that must not be shown.
func (c *credentials) sign(h http.Header) (secrets, error) {
	if c == nil {
		return nil, nil
	}
	secret, err := c.file.get()
	if err != nil {
		return nil, err
	}
	s := c.last.Load()
	if s == nil || s.secret != secret {
		made, err := c.makeSignature(secret)
		if err != nil {
			return nil, fmt.Errorf("read the trigger's %s: %w", c.file.field, err)
		}
		s = &made
		c.last.Store(s)
	}
	h[c.header] = s.values
	return s.hidden, nil
}

// makeSignature makes the header's value. It also prevents a file of several lines from becoming
// several headers.
func (c *credentials) makeSignature(secret string) (signature, error) {
	for i := range len(secret) {
		if b := secret[i]; b < ' ' && b != '\t' || b == 0x7f {
			return signature{}, errors.New("it holds more than one line, or a control character: write the secret alone into it")
		}
	}
	s, err := c.form(secret)
	s.secret = secret
	return s, err
}

func bearer(token string) (signature, error) {
	if strings.ContainsRune(token, ' ') {
		return signature{}, errors.New("it holds a space: write only the token into it, without Bearer")
	}
	return signature{values: []string{"Bearer " + token}, hidden: secrets{token}}, nil
}

func basic(pair string) (signature, error) {
	_, password, ok := strings.Cut(pair, ":")
	if !ok {
		return signature{}, errors.New("it holds no colon: write user:password into it")
	}
	coded := base64.StdEncoding.EncodeToString([]byte(pair))
	return signature{values: []string{"Basic " + coded}, hidden: secrets{coded, password}}, nil
}

func plain(value string) (signature, error) {
	return signature{values: []string{value}, hidden: secrets{value}}, nil
}

// secretFile is a file that a trigger's credentials name. It is opened when it is first
// needed, so that a missing file only affects its own trigger.
type secretFile struct {
	field string // field of the config, such as bearerFile
	path  string

	mu   sync.Mutex
	file *config.SecretFile
}

func newSecretFile(field, path string) *secretFile {
	if path == "" {
		return nil
	}
	return &secretFile{field: field, path: path}
}

// get returns the file's present content. If the file cannot be read, get returns the
// last content: a secret that is being replaced may be missing for a moment, and the
// subscriber rejects an old one.
func (f *secretFile) get() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		file, err := config.OpenSecret(f.path)
		if err != nil {
			return "", f.trouble(err)
		}
		f.file = file
	}
	secret, _ := f.file.Get() // after an error the file still has its last readable content
	return secret.Reveal(), nil
}

// trouble names the field but not the path: many people read dead letters, and if the
// config has the secret in place of the path, the path is the secret.
func (f *secretFile) trouble(err error) error {
	if cause := new(fs.PathError); errors.As(err, &cause) {
		err = cause.Err
	}
	said := strings.ReplaceAll(err.Error(), f.path, "the file")
	return fmt.Errorf("read the trigger's %s: %s: give the path of a file that the dispatcher can read", f.field, said)
}

// secrets are texts that a subscriber knows and that must not be shown to others.
type secrets []string

// redact removes the secrets from a text of the subscriber.
func (s secrets) redact(text string) string {
	for _, secret := range s {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	return text
}

// trim removes the end of a cut text if it may be the beginning of a secret.
func (s secrets) trim(text string) string {
	for _, secret := range s {
		for n := min(len(secret), len(text)); n > 0; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				text = text[:len(text)-n]
				break
			}
		}
	}
	return text
}
