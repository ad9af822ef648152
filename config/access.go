package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Access is who may do what at the door: another file than the config, because
// it changes more often and others may write it.
type Access struct {
	Tokens []Token // by name
	OIDC   *OIDC   // nil: no JWT opens the door
}

// Token is a caller with a token of ours.
type Token struct {
	Name    string // authid of what the caller does
	Line    int    // of the file
	Hash    [sha256.Size]byte
	Expires time.Time // from then on it is refused; zero is never
	Rights
}

// Rights are what a caller may do. A nil list of types, sources or keys is all
// of them; else each item is a text, or the beginning of one and a *.
type Rights struct {
	Roles   []string // of AccessRoles
	Types   []string // that it may publish
	Sources []string
	Keys    []string // partitionkeys and subjects that it may publish, read and act on
}

// OIDC is an issuer whose JWTs open the door too.
type OIDC struct {
	Issuer   string
	Audience string
	Name     string // the claim that becomes authid
	Roles    []ClaimRights
}

// ClaimRights are the rights of those whose claim is, or holds, a value.
type ClaimRights struct {
	Claim, Value string
	Rights
}

// AccessRoles are the words that a role may be.
func AccessRoles() []string { return []string{"publish", "read", "operate", "approve"} }

// ParseAccess reads an access file's bytes. The name is what problems call the
// file. Its error is an *Error.
func ParseAccess(name string, data []byte) (*Access, error) {
	r, a := new(report), new(Access)
	if root := r.document(source{name: name, data: data}); root != nil {
		v := value{node: root, file: name, to: r}
		strict(v)
		a.read(v)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return a, nil
}

// LoadAccess reads an access file. What is wrong in it is an *Error; a file
// that cannot be read is another.
func LoadAccess(path string) (*Access, error) {
	s, err := readRegular(path, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read access file: %w; `tidemill token new` makes one", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read access file: %w", err)
	}
	return ParseAccess(s.name, s.data)
}

func (a *Access) read(v value) {
	v.versioned(
		field{"tokens", a.readTokens},
		field{"oidc", a.readOIDC},
	)
}

// Token finds a token by its caller's name.
func (a *Access) Token(name string) (Token, bool) {
	for _, t := range a.Tokens {
		if t.Name == name {
			return t, true
		}
	}
	return Token{}, false
}
