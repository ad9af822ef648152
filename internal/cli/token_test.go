package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
)

// stdout has only the token, and a gateway accepts it.
func TestTokenNew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.yaml")
	o := call(t, "", "token", "new", "crm", "--role", "publish,read", "--types", "order-*, refund", "--types", "bill",
		"--keys", "42", "--expires", "2099-01-31", "--file", file)
	token := strings.TrimSuffix(o.out, "\n")
	if o.code != 0 || !strings.HasPrefix(token, "tm_") || strings.ContainsAny(token, " \n") {
		t.Fatalf("exit %d, %d letters on stdout, stderr %s", o.code, len(o.out), o.err)
	}
	mention(t, "stderr", o.err, "crm is in "+file, "publish, read; types order-*, refund, bill; keys 42; until 2099-01-31T00:00:00Z", "only once")
	if strings.Contains(o.err, token[3:]) {
		t.Error("stderr shows the token")
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), token[3:]) || !strings.Contains(string(text), fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token)))) {
		t.Errorf("%v\n%s", err, text)
	}
	g, err := access.Open(t.Context(), file, access.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close(t.Context())
	if c, err := g.Caller(t.Context(), "Bearer "+token); err != nil || c.Name() != "crm" || !c.MayTouch(access.Read, "42") || c.AllKeys(access.Publish) {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestTokenReplace(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.yaml")
	first := ok(t, "token", "new", "crm", "--role", "publish", "--file", file)
	o := call(t, "", "token", "new", "crm", "--role", "publish", "--file", file)
	if o.code != exitFailed || o.out != "" {
		t.Errorf("exit %d, %q", o.code, o.out)
	}
	mention(t, "the error", o.err, "there is a token of that name in line 6", "--replace")
	if second := ok(t, "token", "new", "crm", "--role", "read", "--replace", "--file", file); second == first {
		t.Error("two tokens are one")
	}
	a, err := config.LoadAccess(file)
	if err != nil || len(a.Tokens) != 1 || a.Tokens[0].Roles[0] != "read" {
		t.Errorf("%+v, %v", a, err)
	}
}

// A replaced token keeps its limits, so that its caller gets no additional rights.
func TestTokenReplaceKeepsWhatIsNotSaid(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.yaml")
	first := ok(t, "token", "new", "crm", "--role", "publish", "--types", "order-*", "--sources", "/crm", "--keys", "shop-*", "--expires", "2099-01-31", "--file", file)
	replace := func(wanted string, flags ...string) {
		t.Helper()
		o := call(t, "", append([]string{"token", "new", "crm", "--replace", "--file", file}, flags...)...)
		if o.code != 0 || o.out == first {
			t.Errorf("%v: exit %d, stderr %s", flags, o.code, o.err)
		}
		mention(t, "stderr", o.err, "("+wanted+")", "Its old token is refused within a second.", "shown only once")
	}
	replace("publish; types order-*; sources /crm; keys shop-*; until 2099-01-31T00:00:00Z")
	replace("publish, read; types order-*; sources /crm; keys 42; until 2099-01-31T00:00:00Z", "--role", "publish,read", "--keys", "42")
	replace("publish, read; types order-*; sources /crm; keys 42", "--expires", "never")

	for name, says := range map[string]string{"crn": "there is no token crn, so there is nothing to replace: did you mean crm?", "other": "nothing to replace: leave out --replace"} {
		if o := call(t, "", "token", "new", name, "--replace", "--role", "read", "--file", file); o.code != exitFailed || o.out != "" || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v", name, o)
		}
	}
	old := leave(t, "version: 1\ntokens:\n  old: {hash: \"sha256:"+strings.Repeat("ab", 32)+"\", role: read, expires: 2020-01-31}\n", t.TempDir(), "a.yaml")
	if o := call(t, "", "token", "new", "old", "--replace", "--file", old); o.code != exitFailed || !strings.Contains(o.err, "give --expires") {
		t.Errorf("%+v", o)
	}
	mention(t, "an expired one", call(t, "", "token", "new", "old", "--replace", "--expires", "never", "--file", old).err, "(read)")
}

// The teams of a file are kept, and shown.
func TestTokensOfTeams(t *testing.T) {
	t.Parallel()
	file := leave(t, "version: 1\ntokens:\n"+
		"  ana: {hash: \"sha256:"+strings.Repeat("ab", 32)+"\", role: read}\n"+
		"  crm: {hash: \"sha256:"+strings.Repeat("cd", 32)+"\", role: publish}\n"+
		"teams:\n  interns: {keys: [\"lab-*\"], recipes: [intent], priority: -100, members: [ana]}\n", t.TempDir(), "a.yaml")
	if got, want := ok(t, "token", "list", "--file", file), `NAME  ROLE     TYPES  SOURCES  KEYS  EXPIRES  TEAMS
ana   read     all    all      all   never    interns
crm   publish  all    all      all   never    -
`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	mention(t, "token list -o json", ok(t, "token", "list", "--file", file, "-o", "json"), `"teams": [`)
	for _, args := range []string{"token remove ana", "token new ana --replace --role operate"} {
		if o := call(t, "", append(strings.Fields(args), "--file", file)...); o.code != exitFailed || !strings.Contains(o.err, "change the team first") {
			t.Errorf("%s: %+v", args, o)
		}
	}
	ok(t, "token", "new", "ana", "--replace", "--file", file)
	ok(t, "token", "remove", "crm", "--file", file)
	mention(t, "token list", ok(t, "token", "list", "--file", file), "interns")
}

func TestTokenListAndRemove(t *testing.T) {
	t.Parallel()
	file := leave(t, "version: 1\ntokens:\n"+
		"  old: {hash: \"sha256:"+strings.Repeat("ab", 32)+"\", role: [read, operate], expires: 2020-01-31}\n"+
		"  crm: {hash: \"sha256:"+strings.Repeat("cd", 32)+"\", role: publish, types: [\"order-*\"], keys: [bot-42]}\n", t.TempDir(), "a.yaml")
	if got, want := ok(t, "token", "list", "--file", file), `NAME  ROLE           TYPES    SOURCES  KEYS    EXPIRES
crm   publish        order-*  all      bot-42  never
old   read, operate  all      all      all     2020-01-31T00:00:00Z (has expired)
`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	mention(t, "token list -o json", ok(t, "token", "list", "--file", file, "-o", "json"),
		`"name": "crm"`, `"roles": [`, `"sources": null`, `"expires": "2020-01-31T00:00:00Z"`, `"expires": null`)
	for _, args := range []string{"token remove crm", "token remove old"} {
		if o := call(t, "", append(strings.Fields(args), "--file", file)...); o.code != 0 || o.out != "" || !strings.Contains(o.err, "is removed") {
			t.Errorf("%s: %+v", args, o)
		}
	}
	if o := call(t, "", "token", "remove", "crm", "--file", file); o.code != exitFailed || !strings.Contains(o.err, "there is no token crm; tidemill token list") {
		t.Errorf("%+v", o)
	}
	if o := call(t, "", "token", "list", "--file", file); o.code != 0 || !strings.Contains(o.err, "token new makes one") {
		t.Errorf("%+v", o)
	}
	if got := ok(t, "token", "list", "--file", file, "-o", "json"); got != "[]\n" {
		t.Errorf("got %q", got)
	}
}

func TestTokenSlips(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.yaml")
	for args, says := range map[string]string{
		"token new":                                      "NAME is missing",
		"token new crm":                                  "--role is missing: give one or more of publish, metrics, read",
		"token new crm --role publsh":                    "did you mean publish?",
		"token new crm --role read --expires soon":       "give a span such as 90d",
		"token new crm --role read --expires d":          "give a span such as 90d",
		"token new crm --role read --expires 2020-01":    "give a span such as 90d",
		"token new crm --role read --expires 0d":         "is in the past",
		"token new crm --role read --expires 2020-01-01": "is in the past",
		"token new crm --role read --key a":              "did you mean --keys?",
		"token remove":                                   "NAME is missing",
		"token list crm":                                 "one argument too many",
	} {
		o := call(t, "", append(strings.Fields(args), "--file", file)...)
		if o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
	for args, says := range map[string]string{
		"token new crm --role read --types a*b": `types[0]: "a*b" has a *`,
		"token new crm --role read --types ,":   "is empty",
		"token new a/b --role read":             `the name "a/b": a caller's name is`,
		"token list":                            "no such file",
		"token remove crm":                      "no such file",
	} {
		o := call(t, "", append(strings.Fields(args), "--file", file)...)
		if o.code != exitFailed || o.out != "" || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a slip made a file")
	}
}

func TestParseExpiry(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 1, 8, 0, 0, 500, time.UTC)
	for text, want := range map[string]string{
		"90d": "2026-08-30T08:00:00Z", "12h": "2026-06-01T20:00:00Z", "2w": "2026-06-15T08:00:00Z",
		"2027-01-31": "2027-01-31T00:00:00Z", "2027-01-31T18:00:00+02:00": "2027-01-31T16:00:00Z",
	} {
		if got, err := parseExpiry(text, now); err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestTokenHelp(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"help token", "token --help", "token -h"} {
		mention(t, args, ok(t, strings.Fields(args)...), "token new", "token list", "token remove")
	}
	mention(t, "token new -h", ok(t, "token", "new", "-h"), "Usage: tidemill token new NAME [flags]", "[TIDEMILL_ACCESS]")
}

func TestValidateAccess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := leave(t, "version: 1\ntokens: {a: {hash: \"sha256:"+strings.Repeat("ab", 32)+"\", role: read}}\n", dir, "good.yaml")
	bad := leave(t, "version: 1\ntokns: {}\n", dir, "bad.yaml")
	conf := leave(t, "version: 1\n", dir, "tidemill.yaml")
	mention(t, "validate", ok(t, "validate", "-f", conf, "--access", good), conf+" is valid", good+" is valid: 1 token, no issuer")
	mention(t, "validate", ok(t, "validate", "--access", good), good+" is valid")
	if got := ok(t, "validate", "-f", conf, "--access", good, "-o", "json"); got != "[]\n" {
		t.Errorf("got %q", got)
	}
	o := call(t, "", "validate", "-f", "testdata/validate.yaml", "--access", bad)
	if o.code != exitFailed {
		t.Errorf("exit %d", o.code)
	}
	mention(t, "both are told", o.out, "testdata/validate.yaml:3:", bad+`:2: tokns: unknown key; did you mean "tokens"?`)
	if o := call(t, "", "validate", "-f", "none.yaml", "--access", good); o.code != exitFailed || !strings.Contains(o.err, "none.yaml does not exist") {
		t.Errorf("%+v", o)
	}
}
