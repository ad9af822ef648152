package access

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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
