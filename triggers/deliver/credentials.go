package deliver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"tidemill.dev/config"
)

// credentials sign a trigger's requests with what lies in a file.
type credentials struct {
	header string // in canonical form
	file   *secretFile
	form   func(secret string) (signature, error)
	last   atomic.Pointer[signature]
}

// signature is a header's value, made once for as long as its secret stays.
type signature struct {
	secret string
	values []string // of the header
	hidden secrets
}

// newCredentials is nil for a subscriber that asks for none.
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

// sign sets the header, and returns what must be shown to nobody.
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
		made, err := c.make(secret)
		if err != nil {
			return nil, fmt.Errorf("read the trigger's %s: %w", c.file.field, err)
		}
		s = &made
		c.last.Store(s)
	}
	h[c.header] = s.values
	return s.hidden, nil
}

// make also keeps a file of several lines from becoming several headers.
func (c *credentials) make(secret string) (signature, error) {
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
		return signature{}, errors.New("it holds a space: write the token alone into it, without Bearer before it")
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
