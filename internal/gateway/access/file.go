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

// entry is a token as the access file has it, a line each.
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

// listed is a list of texts, each in quotes: many patterns mean something else
// to YAML without.
func listed(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quote(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote writes a text as JSON does, which YAML reads too.
func quote(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

// keyed is a name as a key: in quotes only if it would else be read as a
// number, a boolean or a date, which the reader knows best.
func keyed(name string) string {
	some := entryNamed(name, config.Token{Rights: config.Rights{Roles: []string{"read"}}}, "  ", "  ")
	if parse(some) == nil {
		return name
	}
	return quote(name)
}

// check says what the reader of access files would say of a token, which may
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

// book is one access file as requests are held against it. It never changes but
// for what it remembers of JWTs, so that a changed file is a new book and
// forgets nothing by half.
type book struct {
	holders map[hash]holder
	tokens  map[string]bool // names that tokens have
	oidc    *config.OIDC    // nil: JWTs open nothing
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

// subjectOf finds who a JWT speaks of. One that was found good is remembered
// for a while, because checking a signature costs a hundred times what finding
// it again does.
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
	// lookEvery is short, because a token that is removed may be one that was
	// stolen.
	lookEvery = 400 * time.Millisecond
	// maxRead is more than an access file may have, which its reader refuses.
	maxRead = 2 << 20
)

// follow applies the file whenever it has changed, until the context ends. It
// looks instead of being told: that finds a mounted Secret's swapped link, an
// editor's renamed file and a change on a network file system alike.
//
// It deals with a change when it has seen it twice: a file that is being
// written may well be valid halfway, and lack half of its tokens.
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

// settle applies what was seen or keeps what was before, and says which.
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

// sight is one look at the file, and a print to know it again by.
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

// read refuses what is no file, because reading a pipe would never end.
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
