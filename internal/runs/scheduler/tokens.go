package scheduler

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"

	"tidemill.dev"
)

// SecretSize is how many bytes the secret of [NewTokens] has.
const SecretSize = 32

// tokenSpace keeps the same secret, used for something else, from ever making a
// token.
const tokenSpace = "tidemill attempt token 1"

// lowerBase32 is what ids are written in: no letter that a URL, a header or a
// log would have to escape.
const lowerBase32 = "abcdefghijklmnopqrstuvwxyz234567"

// Tokens makes and checks the tokens of attempts: an HMAC over the run, the
// number and the offset of the fact that began it. The offset is the fence: who
// takes a run over begins another attempt at another offset, and the token of
// the one before is that of nobody.
type Tokens struct {
	secret []byte
}

// NewTokens needs 32 bytes that all gateways and controllers of an install share.
func NewTokens(secret []byte) (*Tokens, error) {
	if len(secret) != SecretSize {
		return nil, fmt.Errorf("make tokens of attempts: the secret has %d bytes; give %d random ones", len(secret), SecretSize)
	}
	return &Tokens{secret: append([]byte(nil), secret...)}, nil
}

// Of is the token of an attempt.
func (t *Tokens) Of(run string, a tidemill.Attempt) string {
	h := hmac.New(sha256.New, t.secret)
	field := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	field([]byte(tokenSpace))
	field([]byte(run))
	field(binary.BigEndian.AppendUint64(nil, uint64(a.Number)))
	field(binary.BigEndian.AppendUint64(nil, uint64(a.Offset)))
	return base32.NewEncoding(lowerBase32).WithPadding(base32.NoPadding).EncodeToString(h.Sum(nil))
}

// Counts reports whether a token is that of an attempt. It takes as long
// whatever is wrong with it.
func (t *Tokens) Counts(token, run string, a tidemill.Attempt) bool {
	return hmac.Equal([]byte(token), []byte(t.Of(run, a)))
}
