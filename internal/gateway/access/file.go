package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"tidemill.dev/config"
)

// tokenLines returns a token as lines of the access file.
func tokenLines(t config.Token, indent, step string) []string {
	return entryNamed(quotedKey(t.Name), t, indent, step)
}

func entryNamed(key string, t config.Token, indent, step string) []string {
	lines := []string{indent + key + ":"}
	say := func(key, value string) { lines = append(lines, indent+step+key+": "+value) }
	say("hash", "sha256:"+hex.EncodeToString(t.Hash[:]))
	if len(t.Roles) == 1 {
		say("role", t.Roles[0])
	} else {
		say("role", "["+strings.Join(t.Roles, ", ")+"]")
	}
	for _, limit := range []struct {
		key      string
		patterns []string
	}{{"types", t.Types}, {"sources", t.Sources}, {"keys", t.Keys}} {
		if limit.patterns != nil {
			say(limit.key, quotedList(limit.patterns))
		}
	}
	if !t.Expires.IsZero() {
		say("expires", t.Expires.UTC().Format(time.RFC3339))
	}
	return lines
}

// quotedList returns a YAML list of quoted texts. Without quotes, YAML would read many patterns
// differently.
func quotedList(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quoteText(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quoteText writes a text as JSON, which is valid YAML.
func quoteText(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // encoding a string never fails
	return strings.TrimSuffix(b.String(), "\n")
}

// quotedKey returns a name as a YAML key. The name is quoted only if YAML would read it as a
// number, a boolean or a date.
func quotedKey(name string) string {
	some := entryNamed(name, config.Token{Rights: config.Rights{Roles: []string{"read"}}}, "  ", "  ")
	if parse(some) == nil {
		return name
	}
	return quoteText(name)
}

// checkToken returns the error that the reader of access files would return for a token. The token
// may come from a command line.
func checkToken(t config.Token) error {
	err := parse(tokenLines(t, "  ", "  "))
	var all *config.Error
	if !errors.As(err, &all) {
		return err
	}
	p := all.Problems[0]
	if what := strings.TrimPrefix(p.Path, "tokens."+t.Name+"."); what != p.Path {
		return fmt.Errorf("%s: %s", what, p.Message)
	}
	return fmt.Errorf("the name %s: %s", clipText(t.Name), p.Message)
}

func parse(entry []string) error {
	_, err := config.ParseAccess("", []byte("version: 1\ntokens:\n"+strings.Join(entry, "\n")))
	return err
}

// fileContent is the content of one access file, ready for lookups. Only its cache of JWTs changes:
// a changed file makes a new fileContent.
type fileContent struct {
	holders map[tokenHash]tokenHolder
	tokens  map[string]bool // names of the tokens
	oidc    *config.OIDC    // settings for JWTs; nil if none is accepted
	claims  []claimGrant
	issuer  *issuer
	seen    *jwtCache
}

func newBook(a *config.Access, issuerOf func(url string) *issuer) *fileContent {
	b := &fileContent{holders: holders(a), tokens: map[string]bool{}, oidc: a.OIDC, seen: newSeen(maxSeen)}
	for _, t := range a.Tokens {
		b.tokens[t.Name] = true
	}
	if a.OIDC != nil {
		b.issuer, b.claims = issuerOf(a.OIDC.Issuer), claimGrants(a)
	}
	return b
}

func (b *fileContent) caller(ctx context.Context, token string, now time.Time) (*Caller, error) {
	if strings.HasPrefix(token, tokenPrefix) {
		return b.holderOf(token, now)
	}
	if b.oidc == nil {
		return nil, fmt.Errorf("%w: tokens of this gateway begin with %s, and it accepts no others", ErrUnknown, tokenPrefix)
	}
	return b.subjectOf(ctx, token, now)
}

// subjectOf returns the caller of a JWT. Valid JWTs are cached for a while, because a check of the
// signature costs a hundred times as much as a lookup.
func (b *fileContent) subjectOf(ctx context.Context, jwt string, now time.Time) (*Caller, error) {
	if strings.Count(jwt, ".") != 2 {
		return nil, fmt.Errorf("%w: it does not begin with %s, and it is not a JWT", ErrMalformed, tokenPrefix)
	}
	sum := hashOf(jwt)
	if c := b.seen.get(sum, now); c != nil {
		return c, nil
	}
	token, err := b.issuer.verifyJWT(ctx, jwt, b.oidc.Audience)
	if err != nil {
		return nil, err
	}
	c, err := b.identifyCaller(token)
	if err != nil {
		return nil, err
	}
	b.seen.put(sum, c, now, token.Expiry.Add(leeway))
	return c, nil
}

const (
	// lookEvery is short, because a removed token may have been stolen.
	lookEvery = 400 * time.Millisecond
	// maxRead is larger than the largest access file that the reader accepts.
	maxRead = 2 << 20
)

// followFile applies the file whenever it has changed, until the context ends. The file is polled,
// because polling also finds a mounted Secret's swapped link, an editor's renamed file and a change
// on a network file system. A change is applied once two polls have read the same text, because a
// half-written file may be valid and lack half of its tokens.
func (g *Guard) followFile(ctx context.Context, settled string) {
	last := settled
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		seen := look(g.path)
		still := seen.print == last
		last = seen.print
		if !still || seen.print == settled {
			continue
		}
		settled = seen.print
		g.applyIfValid(seen)
	}
}

// applyIfValid applies the file if the file is valid, and logs the result. Otherwise the old
// content stays in force.
func (g *Guard) applyIfValid(seen fileState) {
	access, err := seen.parse(g.path)
	g.mu.Lock()
	g.refused = err
	g.mu.Unlock()
	if err != nil {
		g.log.Warn("access: the file is invalid; the rights of its last valid version stay in force", "file", g.path, "reason", err)
		return
	}
	g.applyFile(access)
	g.log.Info("access: file applied", "file", g.path, "tokens", len(access.Tokens))
}

// fileState is the result of one poll of the file. Two polls with the same print have read the same
// text.
type fileState struct {
	data  []byte
	err   error
	print string
}

func look(path string) fileState {
	data, err := readRegular(path)
	if err != nil {
		return fileState{err: fmt.Errorf("read access file: %w", err), print: "error: " + err.Error()}
	}
	sum := sha256.Sum256(data)
	return fileState{data: data, print: string(sum[:])}
}

func (s fileState) parse(path string) (*config.Access, error) {
	if s.err != nil {
		return nil, s.err
	}
	return config.ParseAccess(path, s.data)
}

// readRegular reads a regular file only, because reading a pipe might never end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}
