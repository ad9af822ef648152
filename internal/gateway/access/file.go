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

// entry returns a token as lines of the access file.
func entry(t config.Token, indent, step string) []string {
	return entryNamed(keyed(t.Name), t, indent, step)
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
			say(limit.key, listed(limit.patterns))
		}
	}
	if !t.Expires.IsZero() {
		say("expires", t.Expires.UTC().Format(time.RFC3339))
	}
	return lines
}

// listed returns a YAML list of quoted texts. Without quotes, YAML would read many patterns
// differently.
func listed(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quote(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote writes a text as JSON, which is valid YAML.
func quote(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // encoding a string never fails
	return strings.TrimSuffix(b.String(), "\n")
}

// keyed returns a name as a YAML key. It adds quotes only if the reader would take the name for a
// number, a boolean or a date.
func keyed(name string) string {
	some := entryNamed(name, config.Token{Rights: config.Rights{Roles: []string{"read"}}}, "  ", "  ")
	if parse(some) == nil {
		return name
	}
	return quote(name)
}

// check returns the error that the reader of access files would return for a token. The token may
// come from a command line.
func check(t config.Token) error {
	err := parse(entry(t, "  ", "  "))
	var all *config.Error
	if !errors.As(err, &all) {
		return err
	}
	p := all.Problems[0]
	if what := strings.TrimPrefix(p.Path, "tokens."+t.Name+"."); what != p.Path {
		return fmt.Errorf("%s: %s", what, p.Message)
	}
	return fmt.Errorf("the name %s: %s", clip(t.Name), p.Message)
}

func parse(entry []string) error {
	_, err := config.ParseAccess("", []byte("version: 1\ntokens:\n"+strings.Join(entry, "\n")))
	return err
}

// book is the content of one access file, ready for lookups. It is immutable, except for the cache
// of JWTs; a changed file makes a new book.
type book struct {
	holders map[hash]holder
	tokens  map[string]bool // names of the tokens
	oidc    *config.OIDC    // settings for JWTs; nil if none is accepted
	claims  []claimGrant
	issuer  *issuer
	seen    *seen
}

func newBook(a *config.Access, issuerOf func(url string) *issuer) *book {
	b := &book{holders: holders(a.Tokens), tokens: map[string]bool{}, oidc: a.OIDC, seen: newSeen(maxSeen)}
	for _, t := range a.Tokens {
		b.tokens[t.Name] = true
	}
	if a.OIDC != nil {
		b.issuer, b.claims = issuerOf(a.OIDC.Issuer), claimGrants(a.OIDC)
	}
	return b
}

func (b *book) caller(ctx context.Context, token string, now time.Time) (*Caller, error) {
	if strings.HasPrefix(token, tokenPrefix) {
		return b.holderOf(token, now)
	}
	if b.oidc == nil {
		return nil, fmt.Errorf("%w: tokens of this door begin with %s, and it takes no others", ErrUnknown, tokenPrefix)
	}
	return b.subjectOf(ctx, token, now)
}

// subjectOf returns the caller of a JWT. It caches valid JWTs for a while, because a check of the
// signature costs a hundred times as much as a lookup.
func (b *book) subjectOf(ctx context.Context, jwt string, now time.Time) (*Caller, error) {
	if strings.Count(jwt, ".") != 2 {
		return nil, fmt.Errorf("%w: it neither begins with %s nor is a JWT", ErrMalformed, tokenPrefix)
	}
	sum := hashOf(jwt)
	if c := b.seen.get(sum, now); c != nil {
		return c, nil
	}
	token, err := b.issuer.verify(ctx, jwt, b.oidc.Audience)
	if err != nil {
		return nil, err
	}
	c, err := b.identify(token)
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

// follow applies the file whenever it has changed, until the context ends. It polls. So it finds a
// mounted Secret's swapped link, an editor's renamed file and a change on a network file system
// alike. It applies a change once it has seen it twice, because a half-written file may be valid
// and lack half of its tokens.
func (g *Guard) follow(ctx context.Context, settled string) {
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
		g.settle(seen)
	}
}

// settle applies the file if it is valid, else the old content stays in force. It logs which.
func (g *Guard) settle(seen sight) {
	access, err := seen.parse(g.path)
	g.mu.Lock()
	g.refused = err
	g.mu.Unlock()
	if err != nil {
		g.log.Warn("access: the file is invalid; the rights of its last valid version stay in force", "file", g.path, "reason", err)
		return
	}
	g.apply(access)
	g.log.Info("access file applied", "file", g.path, "tokens", len(access.Tokens))
}

// sight is the result of one look at the file. print is a text to compare it with the next.
type sight struct {
	data  []byte
	err   error
	print string
}

func look(path string) sight {
	data, err := read(path)
	if err != nil {
		return sight{err: fmt.Errorf("read access file: %w", err), print: "error: " + err.Error()}
	}
	sum := sha256.Sum256(data)
	return sight{data: data, print: string(sum[:])}
}

func (s sight) parse(path string) (*config.Access, error) {
	if s.err != nil {
		return nil, s.err
	}
	return config.ParseAccess(path, s.data)
}

// read reads a regular file only, because reading a pipe might never end.
func read(path string) ([]byte, error) {
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
