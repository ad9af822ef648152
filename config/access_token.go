package config

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

const hashPrefix = "sha256:"

// callerName keeps names to what fits a header, a log line and an attribute.
var callerName = shaped(100, `^[A-Za-z0-9][A-Za-z0-9._@-]*$`)

func (a *Access) readTokens(v value) {
	hashed := map[[sha256.Size]byte]Problem{}
	for key, child := range v.pairs() {
		if !callerName.fits(key.Value) {
			child.problemAt(key, "a caller's name is 1 to 100 letters, digits and . _ @ -, and begins with a letter or digit")
		}
		t := Token{Name: key.Value, Line: key.Line}
		t.read(key, child)
		if first, again := hashed[t.Hash]; again && t.Hash != [sha256.Size]byte{} {
			child.problemAt(key, "has the hash of %s in %s: one token would have two names; make a token for each", first.Path, first.at())
		}
		hashed[t.Hash] = Problem{File: v.file, Line: key.Line, Path: child.path}
		a.Tokens = append(a.Tokens, t)
	}
	slices.SortFunc(a.Tokens, func(a, b Token) int { return strings.Compare(a.Name, b.Name) })
}

func (t *Token) read(key *yaml.Node, v value) {
	given := v.given(append(t.Rights.fields(),
		field{"hash", t.readHash},
		field{"expires", t.readExpires},
	)...)
	v.require(key, given, "hash", "make it with `tidemill token new`")
	v.require(key, given, "role", "write one or more of "+strings.Join(AccessRoles(), ", "))
}

// readHash repeats nothing of what stands there: it may well be a token.
func (t *Token) readHash(v value) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	digits, prefixed := strings.CutPrefix(text, hashPrefix)
	sum, err := hex.DecodeString(digits)
	if !prefixed || err != nil || len(sum) != len(t.Hash) {
		v.problem("must be %s and the 64 hex digits of the token's SHA-256, never the token itself; "+
			"`tidemill token new` writes it. If this is a token, it is no secret any more: make a new one", hashPrefix)
		return
	}
	copy(t.Hash[:], sum)
}

// readExpires takes a date as the beginning of that day, so that a token never
// outlives what its reader takes the date for.
func (t *Token) readExpires(v value) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			t.Expires = at.UTC()
			return
		}
	}
	v.problem("must be a date such as 2027-01-31, from whose beginning in UTC the token is refused, or a time such as 2027-01-31T18:00:00Z, not %s", show(text))
}
