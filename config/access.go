package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/spelling"
)

// Access says what each caller of the gateway may do. It is a separate file, because it changes
// more often than the config and other people may edit it.
type Access struct {
	Tokens []Token // by name
	OIDC   *OIDC   // if nil, no JWT is accepted
	Teams  []Team  // in the order of the file
}

// Token is a caller that has one of Tidemill's own tokens.
type Token struct {
	Name    string // authid of the caller's actions
	Line    int    // line in the file
	Hash    [sha256.Size]byte
	Expires time.Time // time from which the token is refused; zero means never
	Rights
}

// Rights limit a caller. A nil list of types, sources or keys allows all of them. Otherwise
// each item is a whole text, or a prefix and a *.
type Rights struct {
	Roles   []string // words of AccessRoles
	Types   []string // event types that the caller may publish
	Sources []string
	Keys    []string // partitionkeys and subjects that the caller may publish, read and act on
}

// OIDC is an issuer whose JWTs the gateway accepts too.
type OIDC struct {
	Issuer   string
	Audience string
	Client   string // id of the dashboard at the issuer; empty if people cannot sign in with the issuer
	Name     string // claim that becomes authid
	Roles    []ClaimRights
}

// ClaimRights are the rights of callers whose claim is, or contains, a value.
type ClaimRights struct {
	Claim, Value string
	Rights
}

// AccessRoles returns the words that a role may be.
func AccessRoles() []string { return []string{"publish", "metrics", "read", "operate", "approve"} }

// ParseAccess parses the bytes of an access file. Problems show the file under the given name.
// The error is an *Error.
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

// LoadAccess reads an access file. If its content is wrong, the error is an *Error. If the file
// cannot be read, it is another error.
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

// read reads the teams last, because their members are tokens and claims.
func (a *Access) read(v value) {
	var teams []value
	v.versioned(
		field{"tokens", a.readTokens},
		field{"oidc", a.readOIDC},
		field{"teams", func(v value) { teams = append(teams, v) }},
	)
	for _, t := range teams {
		a.readTeams(t)
	}
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

// maxPatterns bounds the patterns that each request is matched against.
const maxPatterns = 1000

func (r *Rights) fields() []field {
	return []field{
		{"role", r.readRoles},
		{"types", func(v value) { r.Types = readPatterns(v, reservedType) }},
		{"sources", func(v value) { r.Sources = readPatterns(v, reservedSource) }},
		{"keys", func(v value) { r.Keys = readPatterns(v, nil) }},
	}
}

// readRoles reads one role or a list of them.
func (r *Rights) readRoles(v value) {
	if v.node.Kind != yaml.SequenceNode {
		if role, ok := v.oneOf(AccessRoles()...); ok {
			r.Roles = []string{role}
		}
		return
	}
	if len(v.node.Content) == 0 {
		v.problem("is an empty list; write one or more of %s", strings.Join(AccessRoles(), ", "))
	}
	for _, item := range v.items() {
		if role, ok := item.oneOf(AccessRoles()...); ok && !slices.Contains(r.Roles, role) {
			r.Roles = append(r.Roles, role)
		}
	}
}

// readPatterns reads a list that restricts. An empty list is refused, because it could mean all
// or nothing.
func readPatterns(v value, reserved func(string) bool) []string {
	items := v.items()
	switch {
	case v.node.Kind == yaml.SequenceNode && len(items) == 0:
		v.problem("is an empty list; remove the key to allow everything")
	case len(items) > maxPatterns:
		v.problem("has more than %d items; use prefixes, such as shop-*", maxPatterns)
		return nil
	}
	var all []string
	for _, item := range items {
		p, ok := item.text()
		switch {
		case !ok:
		case strings.Contains(strings.TrimSuffix(p, "*"), "*"):
			item.problem("%s has a * that is not its end; write a * only at the end, where it matches any rest", show(p))
		case reserved != nil && reserved(p):
			item.problem("%s is reserved for Tidemill and cannot be published from outside; remove it", show(p))
		default:
			all = append(all, p)
		}
	}
	return all
}

func reservedType(pattern string) bool { return tidemill.Reserved(pattern, "") != nil }

func reservedSource(pattern string) bool { return tidemill.Reserved("", pattern) != nil }

const hashPrefix = "sha256:"

// callerName restricts names to those that fit a header, a log line and an attribute.
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
	given := v.presentFields(append(t.Rights.fields(),
		field{"hash", t.readHash},
		field{"expires", t.readExpires},
	)...)
	v.require(key, given, "hash", "make it with `tidemill token new`")
	v.require(key, given, "role", "write one or more of "+strings.Join(AccessRoles(), ", "))
}

// readHash repeats nothing of the value in a problem, because it may be a token by mistake.
func (t *Token) readHash(v value) {
	text, ok := v.scalar()
	if !ok {
		return
	}
	digits, prefixed := strings.CutPrefix(text, hashPrefix)
	sum, err := hex.DecodeString(digits)
	if !prefixed || err != nil || len(sum) != len(t.Hash) {
		v.problem("must be %s and the 64 hex digits of the token's SHA-256, never the token itself; "+
			"`tidemill token new` writes it. If this is a token, it is no longer secret: make a new one", hashPrefix)
		return
	}
	copy(t.Hash[:], sum)
}

// readExpires takes a date as the beginning of that day, so that a token never lives longer
// than a reader of the file expects.
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

// defaultNameClaim is a claim that an issuer never gives to another account.
const defaultNameClaim = "sub"

func (a *Access) readOIDC(v value) {
	if isNull(v.node) {
		return // everything under the key is commented out
	}
	o := &OIDC{Name: defaultNameClaim}
	a.OIDC = o
	given := v.presentFields(
		field{"issuer", o.readIssuer},
		field{"audience", func(v value) { o.Audience, _ = v.text() }},
		field{"client", func(v value) { o.Client, _ = v.text() }},
		field{"name", func(v value) { o.Name, _ = v.text() }},
		field{"roles", o.readRoles},
	)
	v.require(v.node, given, "issuer", "write the issuer's URL, as in its tokens")
	v.require(v.node, given, "audience", "write the aud of the issuer's tokens for this gateway; without it a token for any other program would be accepted")
	v.require(v.node, given, "roles", "without it a JWT may do nothing: write a list such as [{claim: groups, value: ml-ops, role: operate}]")
}

// readIssuer requires TLS, because an attacker who can change the issuer's answers in transit
// could log in.
func (o *OIDC) readIssuer(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		v.problem("%s is not a URL; write it like https://id.example", show(text))
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		v.problem("%s has more than a host and a path; write the issuer as in its tokens", show(text))
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		v.problem("%s is not https; without TLS the keys could be forged (http is allowed for loopback)", show(text))
	default:
		o.Issuer = text
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (o *OIDC) readRoles(v value) {
	items := v.items()
	if v.node.Kind == yaml.SequenceNode && len(items) == 0 {
		v.problem("is an empty list; without a role a JWT may do nothing")
	}
	for _, item := range items {
		var c ClaimRights
		c.read(item)
		o.Roles = append(o.Roles, c)
	}
}

func (c *ClaimRights) read(v value) {
	given := v.presentFields(append([]field{
		{"claim", func(v value) { c.Claim, _ = v.text() }},
		{"value", func(v value) { c.Value, _ = v.text() }},
	}, c.Rights.fields()...)...)
	v.require(v.node, given, "claim", "name the claim that gives the role")
	v.require(v.node, given, "value", "write the value that the claim must be, or have")
	v.require(v.node, given, "role", "write one or more of "+strings.Join(AccessRoles(), ", "))
}

// Team is a group of callers that may operate some recipes for some keys, up to a priority. Its members have
// these rights besides those of their tokens and claims.
type Team struct {
	Name     string
	Keys     []string // patterns, as those of Rights; there is no team for all keys
	Recipes  []string // patterns of the recipes whose runs it may start, cancel and retry
	Priority int      // greatest priority that its members may give a run
	Tokens   []string // names of the members with a token
	Claims   []Claim  // members with a JWT: all whose claim is, or contains, a value
}

// Claim is a claim of a JWT, and the value that the claim is, or contains.
type Claim struct{ Name, Value string }

// MaxAskedPriority is the greatest priority that a request may give a run. The smallest is its negative.
const MaxAskedPriority = 1000

// TeamsOf returns the names of the teams that a token is a member of.
func (a *Access) TeamsOf(token string) (names []string) {
	for _, t := range a.Teams {
		if slices.Contains(t.Tokens, token) {
			names = append(names, t.Name)
		}
	}
	return names
}

func (a *Access) readTeams(v value) {
	for key, child := range v.pairs() {
		if !callerName.fits(key.Value) {
			child.problemAt(key, "a team's name is 1 to 100 letters, digits and . _ @ -, and begins with a letter or digit")
		}
		t := Team{Name: key.Value}
		given := child.presentFields(
			field{"keys", func(v value) { t.Keys = readRequiredPatterns(v) }},
			field{"recipes", func(v value) { t.Recipes = readRequiredPatterns(v) }},
			field{"priority", readInteger(&t.Priority, -MaxAskedPriority, MaxAskedPriority)},
			field{"members", func(v value) { t.readMembers(v, a) }},
		)
		child.require(key, given, "keys", `write the keys that it may operate, such as ["lab-*"]`)
		child.require(key, given, "recipes", `write the recipes that it may run, such as [intent, "vision-*"]`)
		child.require(key, given, "members", "write a list of names of tokens, and of {claim: groups, value: interns}")
		a.Teams = append(a.Teams, t)
	}
}

// readRequiredPatterns reads a list that must say what it allows.
func readRequiredPatterns(v value) []string {
	if v.node.Kind == yaml.SequenceNode && len(v.node.Content) == 0 {
		v.problem("is an empty list; write what the team may operate, or \"*\" for everything")
		return nil
	}
	return readPatterns(v, nil)
}

// readMembers needs the tokens and the issuer, so it runs after them.
func (t *Team) readMembers(v value, a *Access) {
	items := v.items()
	if v.node.Kind == yaml.SequenceNode && len(items) == 0 {
		v.problem("is an empty list; remove the team, or write its members")
	}
	for _, item := range items {
		if item.node.Kind == yaml.MappingNode {
			t.readClaim(item, a)
			continue
		}
		if name, ok := item.text(); ok {
			t.readToken(item, name, a)
		}
	}
}

func (t *Team) readToken(v value, name string, a *Access) {
	token, known := a.Token(name)
	switch {
	case !known:
		v.problem("there is no token %s%s", show(name), a.nearestToken(name))
	case slices.Contains(t.Tokens, name):
		v.problem("%s is a member already; remove one of the two", show(name))
	case slices.ContainsFunc(token.Roles, func(r string) bool { return r == "operate" || r == "approve" }):
		v.problem("the token %s may operate by its role already, and the limits of the team would not bind it: give the token the roles publish and read, or remove it here", show(name))
	default:
		t.Tokens = append(t.Tokens, name)
	}
}

func (a *Access) nearestToken(name string) string {
	var names []string
	for _, t := range a.Tokens {
		names = append(names, t.Name)
	}
	if near, ok := spelling.Nearest(name, names); ok {
		return "; did you mean " + show(near) + "?"
	}
	return "; make it with `tidemill token new`, or remove it here"
}

func (t *Team) readClaim(v value, a *Access) {
	var c Claim
	given := v.presentFields(
		field{"claim", func(v value) { c.Name, _ = v.text() }},
		field{"value", func(v value) { c.Value, _ = v.text() }},
	)
	v.require(v.node, given, "claim", "name the claim that makes a caller a member")
	v.require(v.node, given, "value", "write the value that the claim must be, or have")
	if a.OIDC == nil {
		v.problem("there is no oidc in this file, so no caller has a claim: write oidc too, or name tokens")
	}
	t.Claims = append(t.Claims, c)
}
