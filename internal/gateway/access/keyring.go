package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.yaml.in/yaml/v3"

	"tidemill.dev/config"
)

// keysRest is the shortest time between two requests for the issuer's keys.
const keysRest = 10 * time.Second

// keyring limits requests for the issuer's keys. As the standard requires, the library requests the
// keys for each token that no known key has signed. So with forged tokens, anyone could make the
// gateway send any number of requests. Within keysRest of the last request, the keyring returns its
// last document, and the token is refused. After failures, the keyring waits longer and longer.
type keyring struct {
	next http.RoundTripper
	now  func() time.Time
	away requestBackoff

	mu   sync.Mutex
	body []byte
	at   time.Time
}

// RoundTrip answers the library's request for the keys.
func (k *keyring) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	body, at := k.body, k.at
	k.mu.Unlock()
	now := k.now()
	if err := k.away.waitError(now); err != nil {
		return nil, err
	}
	if body != nil && now.Sub(at) < keysRest {
		return answer(r, body), nil
	}
	body, err := k.ask(r)
	k.away.note(now, err)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.body, k.at = body, now
	k.mu.Unlock()
	return answer(r, body), nil
}

func (k *keyring) ask(r *http.Request) ([]byte, error) {
	resp, err := k.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(resp.Body) // bytes in memory, from the courier
}

// yamlPage is a file's lines and its YAML tree. Changes replace whole lines, because a YAML writer
// would lose blank lines, quotes and the places of comments.
type yamlPage struct {
	lines []string // lines with their ends
	end   string   // end of a line
	root  *yaml.Node
}

func readPage(text []byte) (*yamlPage, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	p := &yamlPage{lines: strings.SplitAfter(string(text), "\n"), end: "\n"}
	if doc.Kind == yaml.DocumentNode {
		p.root = doc.Content[0]
	}
	if strings.Contains(p.lines[0], "\r\n") {
		p.end = "\r\n"
	}
	last := len(p.lines) - 1
	if p.lines[last] == "" {
		p.lines = p.lines[:last]
	} else {
		p.lines[last] += p.end
	}
	if !isBlock(p.root) {
		return nil, errByHand
	}
	return p, nil
}

func isBlock(n *yaml.Node) bool {
	return n != nil && n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0
}

func (p *yamlPage) text() []byte { return []byte(strings.Join(p.lines, "")) }

// findKey returns a key of a mapping, its value, and the line of the next key. Without a next key,
// the line is end.
func findKey(in *yaml.Node, key string, end int) (k, v *yaml.Node, next int) {
	for i := 0; i+1 < len(in.Content); i += 2 {
		if in.Content[i].Value != key {
			continue
		}
		if i+2 < len(in.Content) {
			end = in.Content[i+2].Line
		}
		return in.Content[i], in.Content[i+1], end
	}
	return nil, nil, end
}

// tokensKey returns the key of the tokens, their value and the line after them.
func (p *yamlPage) tokensKey() (k, v *yaml.Node, end int) {
	return findKey(p.root, "tokens", len(p.lines)+1)
}

// addEntry adds an entry after the others.
func (p *yamlPage) addEntry(t config.Token) error {
	key, tokens, end := p.tokensKey()
	switch {
	case key == nil:
		at := p.lineAfter(len(p.lines)+1, 0)
		p.insertLines(at, append([]string{"", "tokens:"}, tokenLines(t, "  ", "  ")...))
	case isBlock(tokens):
		indent := keyIndent(tokens.Content[0])
		p.insertLines(p.lineAfter(end, len(indent)), tokenLines(t, indent, p.fieldIndent(tokens, indent)))
	case len(tokens.Content) == 0:
		line := &p.lines[key.Line-1]
		*line = strings.Replace(*line, " {}", "", 1)
		p.insertLines(key.Line+1, tokenLines(t, keyIndent(key)+"  ", "  "))
	default:
		return errByHand
	}
	return nil
}

// replaceEntry replaces the entry of the same name.
func (p *yamlPage) replaceEntry(t config.Token) error {
	from, to, indent, err := p.entryLines(t.Name)
	if err != nil {
		return err
	}
	_, tokens, _ := p.tokensKey()
	step := p.fieldIndent(tokens, indent)
	p.lines = slices.Delete(p.lines, from-1, to-1)
	p.insertLines(from, tokenLines(t, indent, step))
	return nil
}

// removeEntry removes an entry, and the comment directly above it, which would otherwise be above
// the next entry.
func (p *yamlPage) removeEntry(name string) error {
	from, to, indent, err := p.entryLines(name)
	if err != nil {
		return err
	}
	for from > 1 && strings.HasPrefix(p.lines[from-2], indent+"#") {
		from--
	}
	if p.blank(from-1) && p.blank(to) { // keep one of the blank lines around it
		to++
	}
	p.lines = slices.Delete(p.lines, from-1, to-1)
	return nil
}

// entryLines returns the lines of an entry: from the line from up to, but not including, the line
// to.
func (p *yamlPage) entryLines(name string) (from, to int, indent string, err error) {
	_, tokens, end := p.tokensKey()
	if !isBlock(tokens) {
		return 0, 0, "", errByHand
	}
	key, _, next := findKey(tokens, name, end)
	indent = keyIndent(key)
	return key.Line, max(p.lineAfter(next, len(indent)+1), key.Line+1), indent, nil
}

// lineAfter returns the line after the last content above a line. It skips blank lines and less
// indented comments, because they belong to the following content.
func (p *yamlPage) lineAfter(line, indent int) int {
	for line > 1 {
		above := strings.TrimRight(p.lines[line-2], "\r\n\t ")
		text := strings.TrimLeft(above, " ")
		if text != "" && (text[0] != '#' || len(above)-len(text) >= indent) {
			break
		}
		line--
	}
	return line
}

func (p *yamlPage) blank(line int) bool {
	return line <= len(p.lines) && strings.TrimSpace(p.lines[line-1]) == ""
}

// insertLines inserts lines before a line. Line numbers begin at 1.
func (p *yamlPage) insertLines(before int, lines []string) {
	for i, l := range lines {
		p.lines = slices.Insert(p.lines, before-1+i, l+p.end)
	}
}

// keyIndent returns the space before a key in its line.
func keyIndent(key *yaml.Node) string { return strings.Repeat(" ", key.Column-1) }

// fieldIndent returns the indentation of a token's fields relative to its name.
func (p *yamlPage) fieldIndent(tokens *yaml.Node, indent string) string {
	for i := 1; i < len(tokens.Content); i += 2 {
		if v := tokens.Content[i]; isBlock(v) && len(v.Content) > 0 && v.Column-1 > len(indent) {
			return strings.Repeat(" ", v.Column-1-len(indent))
		}
	}
	return "  "
}

const (
	// askWithin is the timeout of one request to the issuer, redirects included.
	askWithin = 5 * time.Second
	maxAnswer = 1 << 20
)

var (
	errPlain = errors.New("it redirects from https to http; such keys could be forged")
	errBig   = fmt.Errorf("its answer is longer than %d KiB", maxAnswer>>10)
	errText  = errors.New("its answer is not JSON")
)

// documentFetcher fetches the issuer's documents. It limits the time and the length of an answer,
// because the library limits neither. If the answer is not JSON, the issuer counts as unreachable.
type documentFetcher struct {
	client *http.Client
	done   <-chan struct{} // closed together with the guard
}

func newCourier(client *http.Client, done <-chan struct{}) *documentFetcher {
	own := *client
	own.CheckRedirect = func(to *http.Request, via []*http.Request) error {
		switch {
		case via[0].URL.Scheme == "https" && to.URL.Scheme != "https":
			return errPlain
		case len(via) > 3:
			return errors.New("it redirects more than three times")
		}
		return nil
	}
	return &documentFetcher{client: &own, done: done}
}

// RoundTrip sends a request and follows redirects. Its errors are [ErrIssuerAway].
func (c *documentFetcher) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := c.bring(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuerAway, err)
	}
	return answer(r, body), nil
}

func (c *documentFetcher) bring(r *http.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	resp, err := c.client.Do(r.Clone(ctx))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", r.URL, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", r.URL, resp.Status)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("read %s: %w", r.URL, errBig)
	case !json.Valid(body):
		return nil, fmt.Errorf("read %s: %w", r.URL, errText)
	}
	return body, nil
}

func answer(r *http.Request, body []byte) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/json"}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}
}

// maxSubject limits the name in a JWT.
const maxSubject = 256

// claimGrant is the grant, or the team, of callers whose claim is, or contains, a value.
type claimGrant struct {
	claim, value string
	grant        grant
	team         *config.Team // nil for a grant
}

// claimGrants returns the grants before the teams, because a team adds to a caller's own grants.
func claimGrants(a *config.Access) []claimGrant {
	var all []claimGrant
	for _, r := range a.OIDC.Roles {
		all = append(all, claimGrant{claim: r.Claim, value: r.Value, grant: newGrant(r.Rights)})
	}
	for _, t := range a.Teams {
		for _, c := range t.Claims {
			all = append(all, claimGrant{claim: c.Name, value: c.Value, team: &t})
		}
	}
	return all
}

// identifyCaller returns the caller of a verified JWT. A caller without a claim that gives a role
// has no rights.
func (b *fileContent) identifyCaller(token *oidc.IDToken) (*Caller, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return nil, fmt.Errorf("%w: its claims cannot be read: %w", ErrBadToken, err)
	}
	name, err := nameIn(claims, b.oidc.Name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadToken, err)
	}
	if b.tokens[name] {
		// Otherwise a user who can choose a name at the issuer could act under the name of a token.
		return nil, fmt.Errorf("%w: its claim %s is %s, which is the name of a token in the access file", ErrBadToken, b.oidc.Name, clipText(name))
	}
	c, unverified := &Caller{name: name}, false
	for _, g := range b.claims {
		switch {
		case !claimHolds(claims[g.claim], g.value):
		case g.claim == claimEmail && isUnverified(claims):
			unverified = true
		case g.team != nil:
			c.join(*g.team)
		default:
			c.grants = append(c.grants, g.grant)
		}
	}
	if unverified && c.grants == nil {
		return nil, fmt.Errorf("%w: it would have its role by its email: %w", ErrBadToken, errUnverified)
	}
	return c, nil
}

// claimEmail is a claim that a person can set at many issuers. The issuer then marks the email as not
// verified.
const claimEmail = "email"

var errUnverified = errors.New("its email is not verified, so it may belong to another person")

// nameIn returns the value of the claim that becomes the caller's authid.
func nameIn(claims map[string]any, claim string) (string, error) {
	name, ok := claims[claim].(string)
	switch {
	case !ok || name == "":
		return "", fmt.Errorf("it has no text claim %s; let the issuer add it, or choose another under oidc.name in the access file", claim)
	case len(name) > maxSubject:
		return "", fmt.Errorf("its claim %s is longer than %d bytes", claim, maxSubject)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return "", fmt.Errorf("its claim %s has characters that cannot be printed", claim)
	case claim == claimEmail && isUnverified(claims):
		return "", errUnverified
	}
	return name, nil
}

// isUnverified reports whether the issuer says that the email is not verified. Many issuers say
// nothing, and some write booleans as texts.
func isUnverified(claims map[string]any) bool {
	switch claims["email_verified"] {
	case nil, true, "true":
		return false
	}
	return true
}

// claimHolds reports whether a claim is the value, or a list that contains the value.
func claimHolds(claim any, value string) bool {
	if list, ok := claim.([]any); ok {
		for _, item := range list {
			if item == value {
				return true
			}
		}
		return false
	}
	return claim == value
}
