package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"time"

	"tidemill.dev/config"
)

const (
	// tokenPrefix tells our tokens from JWTs, and lets those who look for
	// leaked secrets find ours.
	tokenPrefix = "tm_"
	tokenBytes  = 32
)

// hash is of a whole token or JWT.
//
// A plain SHA-256 would be too fast for a password. Our tokens are 256 random
// bits, which nobody finds by trying, however fast; so a slow hash would buy
// nothing and cost every request milliseconds.
type hash = [sha256.Size]byte

func hashOf(token string) hash { return sha256.Sum256([]byte(token)) }

// NewToken makes a token and its hash. Nothing keeps the token.
func NewToken() (token config.Secret, sum [sha256.Size]byte) {
	var secret [tokenBytes]byte
	rand.Read(secret[:]) // never fails: the program ends if the system has no randomness
	text := tokenPrefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(secret[:]))
	return config.NewSecret(text), hashOf(text)
}

// holder is who has a token.
type holder struct {
	caller  *Caller
	expires time.Time // zero is never
}

func holders(tokens []config.Token) map[hash]holder {
	all := make(map[hash]holder, len(tokens))
	for _, t := range tokens {
		all[t.Hash] = holder{&Caller{name: t.Name, grants: []grant{newGrant(t.Rights)}}, t.Expires}
	}
	return all
}

// holderOf finds who has a token. How long a look-up takes may depend on how
// much of a hash fits, but who sends a token cannot choose its hash: what could
// be learned from the clock is at most a hash, and a hash is no token. So a
// look-up by hash leaks nothing, whatever the map does.
func (b *book) holderOf(token string, now time.Time) (*Caller, error) {
	h, ok := b.holders[hashOf(token)]
	if !ok {
		return nil, fmt.Errorf("%w: it may have been removed from the access file; ask for a new one", ErrUnknown)
	}
	if !h.expires.IsZero() && !now.Before(h.expires) {
		return nil, fmt.Errorf("%w at %s; ask for a new one", ErrExpired, h.expires.Format(time.RFC3339))
	}
	return h.caller, nil
}
