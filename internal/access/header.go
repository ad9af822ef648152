package access

import (
	"fmt"
	"strings"
)

const (
	scheme = "Bearer"
	// maxToken is more than a JWT of an issuer that lists every group has.
	maxToken = 16 << 10
)

// bearer takes the token out of an Authorization header, as RFC 6750 has it.
func bearer(header string) (string, error) {
	if header == "" {
		return "", ErrNoToken
	}
	if len(header) <= len(scheme) || !strings.EqualFold(header[:len(scheme)], scheme) || header[len(scheme)] != ' ' {
		return "", fmt.Errorf("%w: give it as `Authorization: Bearer TOKEN`", ErrMalformed)
	}
	token := strings.TrimLeft(header[len(scheme):], " ")
	switch {
	case token == "":
		return "", fmt.Errorf("%w: nothing stands behind Bearer", ErrMalformed)
	case len(token) > maxToken:
		return "", fmt.Errorf("%w: it is longer than %d KiB", ErrMalformed, maxToken>>10)
	case !isToken(token):
		return "", fmt.Errorf("%w: it has other letters than a token may", ErrMalformed)
	}
	return token, nil
}

// isToken holds a text to the grammar of a bearer token: letters, digits and
// some signs, then perhaps =.
func isToken(s string) bool {
	s = strings.TrimRight(s, "=")
	for i := range len(s) {
		c := s[i]
		switch c {
		case '-', '.', '_', '~', '+', '/':
			continue
		}
		if c|0x20-'a' >= 26 && c-'0' >= 10 {
			return false
		}
	}
	return s != ""
}
