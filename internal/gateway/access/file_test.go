package access

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/config"
)

// zeroHash is an easily readable hash.
const zeroHash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

func sumOf(n byte) string { return zeroHash[:len(zeroHash)-1] + string('0'+n) }

func crm() config.Token {
	return config.Token{Name: "crm", Rights: config.Rights{Roles: []string{"publish"}}}
}

// The rest of the file does not change.
func TestAdd(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"behind the others, before what follows": {`# Ours.
version: 1

tokens:
  # the shop's
  shop:   # ask Ana
    hash: "` + sumOf(1) + `"
    role: [ publish,
            read ]
  # old: {}

# People.
oidc: {issuer: "https://id.example", audience: a, roles: [{claim: c, value: v, role: read}]}
`, `# Ours.
version: 1

tokens:
  # the shop's
  shop:   # ask Ana
    hash: "` + sumOf(1) + `"
    role: [ publish,
            read ]
  # old: {}
  crm:
    hash: ` + zeroHash + `
    role: publish

# People.
oidc: {issuer: "https://id.example", audience: a, roles: [{claim: c, value: v, role: read}]}
`},
		"no tokens yet": {"version: 1\n# all\n\n", "version: 1\n# all\n\ntokens:\n  crm:\n    hash: " + zeroHash + "\n    role: publish\n\n"},
		"an empty list": {"version: 1\ntokens: {} # none\n", "version: 1\ntokens: # none\n  crm:\n    hash: " + zeroHash + "\n    role: publish\n"},
		"nothing":       {"tokens:\n  # soon\nversion: 1\n", "tokens:\n  crm:\n    hash: " + zeroHash + "\n    role: publish\n  # soon\nversion: 1\n"},
		"no newline at the end, deeper steps": {
			"version: 1\ntokens:\n   a:\n       role: read\n       hash: " + sumOf(1),
			"version: 1\ntokens:\n   a:\n       role: read\n       hash: " + sumOf(1) + "\n   crm:\n       hash: " + zeroHash + "\n       role: publish\n"},
		"Windows lines": {
			"version: 1\r\ntokens:\r\n  a: {role: read, hash: '" + sumOf(1) + "'}\r\n",
			"version: 1\r\ntokens:\r\n  a: {role: read, hash: '" + sumOf(1) + "'}\r\n  crm:\r\n    hash: " + zeroHash + "\r\n    role: publish\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), c.before)
			if err := Add(path, crm()); err != nil {
				t.Fatal(err)
			}
			reads(t, path, c.after)
			if err := Add(path, crm()); !errors.Is(err, ErrExists) {
				t.Errorf("a second time: %v", err)
			}
			reads(t, path, c.after)
		})
	}
}

func reads(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("beside it lies %s", left)
	}
}

const three = `version: 1
tokens:
  # the shop's
  shop: {hash: "` + zeroHash + `", role: publish}

  # the CRM's,
  # in Berlin
  crm:
    hash: ` + zeroHash + `
    # until the move
    expires: 2030-01-01

    role: publish

  # the dashboard's
  dash: {hash: "` + zeroHash + `", role: read}
  # that was all
`

func threeTokens() string {
	text := three
	for i := range byte(3) {
		text = strings.Replace(text, zeroHash, sumOf(i+1), 1)
	}
	return text
}

func TestReplace(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), threeTokens())
	now, err := Replace(path, "crm", func(t *config.Token) error {
		t.Hash, t.Keys = [32]byte{}, []string{"bot-42", "*"}
		return nil
	})
	if err != nil || now.Roles[0] != "publish" || now.Keys[0] != "bot-42" {
		t.Fatalf("%+v, %v", now, err)
	}
	reads(t, path, strings.Replace(threeTokens(), `    hash: `+sumOf(2)+`
    # until the move
    expires: 2030-01-01

    role: publish
`, `    hash: `+zeroHash+`
    role: publish
    keys: ["bot-42", "*"]
    expires: 2030-01-01T00:00:00Z
`, 1))
}

func TestReplaceRefused(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), threeTokens())
	no := errors.New("no")
	if _, err := Replace(path, "crn", func(*config.Token) error { return nil }); !errors.Is(err, ErrNotThere) {
		t.Errorf("none of that name: %v", err)
	}
	if _, err := Replace(path, "crm", func(*config.Token) error { return no }); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
	if _, err := Replace(path, "crm", func(t *config.Token) error { t.Keys = []string{"a*b"}; return nil }); err == nil || !strings.Contains(err.Error(), "has a *") {
		t.Errorf("got %v", err)
	}
	reads(t, path, threeTokens())
}

func TestRemove(t *testing.T) {
	path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), threeTokens())
	remove := func(name, rest string) {
		t.Helper()
		if err := Remove(path, name); err != nil {
			t.Fatal(err)
		}
		reads(t, path, rest)
	}
	remove("crm", `version: 1
tokens:
  # the shop's
  shop: {hash: "`+sumOf(1)+`", role: publish}

  # the dashboard's
  dash: {hash: "`+sumOf(3)+`", role: read}
  # that was all
`)
	remove("dash", "version: 1\ntokens:\n  # the shop's\n  shop: {hash: \""+sumOf(1)+"\", role: publish}\n\n  # that was all\n")
	remove("shop", "version: 1\ntokens:\n\n  # that was all\n")
	if err := Remove(path, "shop"); err == nil || !strings.Contains(err.Error(), "there is no token shop") {
		t.Errorf("got %v", err)
	}
	if err := Add(path, crm()); err != nil {
		t.Error(err)
	}
	if err := Remove(filepath.Join(t.TempDir(), "none.yaml"), "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestAddMakesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	token := crm()
	token.Types, token.Sources, token.Keys = []string{"order-*"}, []string{"/shop/ä", `a"b`}, []string{"no", "42", "<x>"}
	token.Roles = []string{"publish", "read"}
	token.Expires = time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)
	if err := Add(path, token); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	a, err := config.LoadAccess(path)
	if err != nil {
		t.Fatal(err)
	}
	got := a.Tokens[0]
	got.Line = 0
	if !reflect.DeepEqual(got, token) {
		t.Errorf("got %+v\nwant %+v", got, token)
	}
}

func TestAddKeepsRightsAndLinks(t *testing.T) {
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "real.yaml"), "version: 1\n")
	if err := errors.Join(os.Chmod(path, 0o640), os.Symlink("real.yaml", filepath.Join(dir, "link.yaml"))); err != nil {
		t.Fatal(err)
	}
	if err := Add(filepath.Join(dir, "link.yaml"), crm()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(filepath.Join(dir, "link.yaml")); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v", err)
	}
}

func TestNamesThatNeedQuotes(t *testing.T) {
	for _, name := range []string{"a", "no", "42", "null", "1e3", "true", "2027-01-31", "ana@shop.example", "0x1F", "y"} {
		path := filepath.Join(t.TempDir(), "a.yaml")
		token := crm()
		token.Name = name
		if err := errors.Join(Add(path, token), Add(path, crm()), Remove(path, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	for says, spoil := range map[string]func(*config.Token){
		"a caller's name":   func(c *config.Token) { c.Name = "a b" },
		"holds a token":     func(c *config.Token) { c.Name = "tm_" + strings.Repeat("a", 40) },
		"types[0]":          func(c *config.Token) { c.Types = []string{"a*b"} },
		"role: must be one": func(c *config.Token) { c.Roles = []string{"root"} },
	} {
		path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), "version: 1\n")
		token := crm()
		spoil(&token)
		if err := Add(path, token); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
		reads(t, path, "version: 1\n")
	}
}

// A file with an odd layout is not changed.
func TestOddFilesStay(t *testing.T) {
	entry := `crm2: {hash: "` + sumOf(1) + `", role: read}`
	for name, text := range map[string]string{
		"flow":           "version: 1\ntokens: {" + entry + "}\n",
		"all flow":       "{version: 1, tokens: {" + entry + "}}\n",
		"an end":         "version: 1\n...\n",
		"null":           "version: 1\ntokens: ~\n",
		"indented":       "  version: 1\n",
		"not valid":      "version: 1\ntokns: {}\n",
		"key on a line":  "version: 1\n? tokens\n: {" + entry + "}\n",
		"question marks": "version: 1\ntokens:\n  ? crm2\n  : {hash: \"" + sumOf(1) + "\", role: read}\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), text)
			err := Add(path, crm())
			if err == nil {
				if _, err := config.LoadAccess(path); err != nil {
					t.Error(err)
				}
				return
			}
			reads(t, path, text)
			if !strings.Contains(err.Error(), "by hand") && !strings.Contains(err.Error(), "correct it first") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Of many concurrent changes, each succeeds or fails because another runs.
func TestManyChangeAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	var all sync.WaitGroup
	var mu sync.Mutex
	done := map[string]bool{}
	for i := range byte(40) {
		all.Go(func() {
			token := crm()
			token.Name, token.Hash[0] = "t"+string('a'+i%26)+string('a'+i/26), i
			err := Add(path, token)
			if err != nil && !strings.Contains(err.Error(), "another process is changing it") {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			done[token.Name] = err == nil
		})
	}
	all.Wait()
	a, err := config.LoadAccess(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range done {
		if _, there := a.Token(name); there != ok {
			t.Errorf("%s: added %t, there %t", name, ok, there)
		}
	}
}

// FuzzEdit checks for any layout that the token is added, the other content stays, and no comment
// is lost.
func FuzzEdit(f *testing.F) {
	for _, s := range []string{threeTokens(), "version: 1\n", "version: 1\ntokens: {}", "tokens:\n\n\nversion: 1", "version: 1\ntokens:\n a: {hash: '" + sumOf(1) + "', role: [\nread\n]}\n#x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		before, err := config.ParseAccess("f", []byte(text))
		if err != nil {
			return
		}
		path := writeFile(t, filepath.Join(t.TempDir(), "a.yaml"), text)
		token := crm()
		token.Hash = hashOf("fuzz")
		if err := Add(path, token); err != nil {
			reads(t, path, text)
			return
		}
		added, err := config.LoadAccess(path)
		if err != nil || len(added.Tokens) != len(before.Tokens)+1 {
			t.Fatalf("%v\n%s", err, text)
		}
		now, _ := os.ReadFile(path)
		for line := range strings.Lines(text) {
			if kept := strings.TrimRight(strings.ReplaceAll(line, " {}", ""), "\r\n"); !strings.Contains(string(now), kept) {
				t.Errorf("%q is lost:\n%s", line, now)
			}
		}
		if err := Remove(path, "crm"); err == nil {
			if after, err := config.LoadAccess(path); err != nil || len(after.Tokens) != len(before.Tokens) {
				t.Errorf("%v\n%s", err, text)
			}
		}
	})
}
