package access

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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

// ErrExists is the error for a new token whose name is taken.
var ErrExists = errors.New("there is a token of that name")

// ErrNotThere is the error for a token that a file does not have.
var ErrNotThere = errors.New("there is no token")

// errByHand is the error for a file that this package cannot change without damage to its layout.
var errByHand = errors.New("its layout cannot be changed safely: " +
	"write one indented entry per line below `tokens:`, or change it by hand")

const newFile = `# The callers of the gateway and their rights. It has no secrets, only the hash
# of each token. tidemill token new adds a token, tidemill token remove removes it.
version: 1
`

// Add adds a token to an access file, and creates a missing file. The rest of the file does not
// change. The file is replaced atomically.
func Add(path string, t config.Token) error {
	if err := checkToken(t); err != nil {
		return err
	}
	return editFile(path, true, func(p *yamlPage, before *config.Access) error {
		if old, exists := before.Token(t.Name); exists {
			return fmt.Errorf("%w in line %d", ErrExists, old.Line)
		}
		return p.addEntry(t)
	}, func(tokens []config.Token) []config.Token { return append(slices.Clone(tokens), t) })
}

// Replace changes a token in its place and returns the new token. Fields that the change function
// does not set keep their values, so that a caller's new token has the same rights as the old one.
func Replace(path, name string, change func(*config.Token) error) (config.Token, error) {
	var t config.Token
	err := editFile(path, false, func(p *yamlPage, before *config.Access) error {
		var exists bool
		if t, exists = before.Token(name); !exists {
			return fmt.Errorf("%w %s", ErrNotThere, name)
		}
		if err := errors.Join(change(&t), checkToken(t)); err != nil {
			return err
		}
		return p.replaceEntry(t)
	}, func(tokens []config.Token) []config.Token { return append(without(tokens, name), t) })
	return t, err
}

// Remove removes a token from an access file.
func Remove(path, name string) error {
	return editFile(path, false, func(p *yamlPage, before *config.Access) error {
		if _, exists := before.Token(name); !exists {
			return fmt.Errorf("%w %s", ErrNotThere, name)
		}
		return p.removeEntry(name)
	}, func(tokens []config.Token) []config.Token { return without(tokens, name) })
}

func without(tokens []config.Token, name string) []config.Token {
	return slices.DeleteFunc(slices.Clone(tokens), func(t config.Token) bool { return t.Name == name })
}

// editFile changes a file's text and parses the result. The result is written only if it differs
// from the old content in nothing but the wanted tokens. So a file with an odd layout is never
// damaged.
func editFile(path string, create bool, change func(*yamlPage, *config.Access) error, want func([]config.Token) []config.Token) (err error) {
	d, err := openDraft(path)
	if err != nil {
		return fmt.Errorf("change %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, d.close()) }()
	text, err := os.ReadFile(d.path)
	if errors.Is(err, fs.ErrNotExist) && create {
		text, err = []byte(newFile), nil
	}
	if err != nil {
		return fmt.Errorf("change access file: %w", err)
	}
	before, err := config.ParseAccess(path, text)
	if err != nil {
		return fmt.Errorf("%s is not valid; correct it first:\n%w", path, err)
	}
	p, err := readPage(text)
	if err == nil {
		err = change(p, before)
	}
	if err != nil {
		return fmt.Errorf("change %s: %w", path, err)
	}
	after, err := config.ParseAccess(path, p.text())
	if err != nil && before.Teams != nil {
		return fmt.Errorf("change %s: a team of the file names the token; change the team first:\n%w", path, err)
	}
	if err != nil || !isSameContent(after, before, want(before.Tokens)) {
		return fmt.Errorf("change %s: %w", path, errByHand)
	}
	return d.write(p.text())
}

// isSameContent reports whether two versions of a file differ in nothing but the wanted tokens.
func isSameContent(after, before *config.Access, want []config.Token) bool {
	if !reflect.DeepEqual(after.OIDC, before.OIDC) || !reflect.DeepEqual(after.Teams, before.Teams) || len(after.Tokens) != len(want) {
		return false
	}
	for _, w := range want {
		got, ok := after.Token(w.Name)
		got.Line, w.Line = 0, 0
		if !ok || !got.Expires.Equal(w.Expires) || !bytes.Equal(got.Hash[:], w.Hash[:]) || !reflect.DeepEqual(got.Rights, w.Rights) {
			return false
		}
	}
	return true
}

// draftFile is the file that will replace the access file. The draft is in the same folder and
// always has the same name. So of two concurrent changes, the second fails instead of overwriting
// the first.
type draftFile struct {
	path  string // path of the access file with links resolved
	file  *os.File
	moved bool // whether the draft has replaced the file; a draft that exists then belongs to another change
}

func openDraft(path string) (*draftFile, error) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("another process is changing it: %s.new exists; if no process is, remove that file", path)
	}
	if err != nil {
		return nil, err
	}
	return &draftFile{path: path, file: f}, nil
}

// write replaces the access file by the draft, which gets the file's owner and permissions.
func (d *draftFile) write(text []byte) error {
	info, err := os.Stat(d.path)
	if err == nil {
		err = errors.Join(keepOwner(d.file, info), d.file.Chmod(info.Mode().Perm()))
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		_, err = d.file.Write(text)
	}
	if err == nil {
		err = d.file.Sync()
	}
	if err == nil {
		err = os.Rename(d.file.Name(), d.path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", d.path, err)
	}
	d.moved = true
	return nil
}

// close removes the draft unless the draft has replaced the access file.
func (d *draftFile) close() error {
	err := d.file.Close()
	if !d.moved {
		err = errors.Join(err, os.Remove(d.file.Name()))
	}
	return err
}
