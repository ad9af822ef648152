package remote

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"tidemill.dev/config"
)

// mayTell refuses to tell a token to whoever listens on the way. There is no
// flag against it: a token that was overheard once is everybody's.
func (g *Gateway) mayTell() error {
	if g.token == nil || g.base.Scheme == "https" || loopback(g.base.Hostname()) {
		return nil
	}
	return fmt.Errorf("a token is not sent to %s in clear text: give an https:// URL, or call without a token", g.base)
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

var errToken = errors.New("read the token")

// sign puts the token on a request. A file that cannot be read any more leaves
// the token it last held: it may be being replaced in this moment.
func (g *Gateway) sign(h http.Header) error {
	if g.token == nil {
		return nil
	}
	token, err := g.token()
	if token.IsZero() {
		if err == nil {
			err = errors.New("it is empty")
		}
		return fmt.Errorf("%w: %w", errToken, err)
	}
	if err != nil {
		g.log.Warn("the token cannot be read again; the one before is used", "reason", err)
	}
	if !sendable(token) {
		return fmt.Errorf("%w: it has spaces or line breaks inside; is it one token alone?", errToken)
	}
	h.Set("Authorization", "Bearer "+token.Reveal())
	return nil
}

// sendable keeps net/http from refusing a header by repeating its value.
func sendable(token config.Secret) bool {
	return !strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
