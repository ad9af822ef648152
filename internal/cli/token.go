package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/gateway/access"
)

const accessFile = "access.yaml"

// accessFlag names the file with the tokens.
type accessFlag struct{ file string }

func (a *accessFlag) Flags(f *command.FlagSet) {
	a.file = accessFile
	f.Text(&a.file, "file", "", "FILE", "the access file")
	f.FromEnv("file", connect.EnvAccess)
}

// mayDo describes the rights of a token for people.
func mayDo(t config.Token) string {
	text := strings.Join(t.Roles, ", ")
	for _, limit := range []struct {
		what     string
		patterns []string
	}{{"types", t.Types}, {"sources", t.Sources}, {"keys", t.Keys}} {
		if limit.patterns != nil {
			text += "; " + limit.what + " " + strings.Join(limit.patterns, ", ")
		}
	}
	return text
}

func tokenNewCommand() command.Command {
	return command.Command{
		Name:    "token new",
		Args:    "NAME",
		Summary: "make a token for a caller of the gateway",
		About: `NAME is the name of the caller, and the authid of its events. The token is printed
once, alone on stdout. Only its hash is stored, in the access file. A gateway with this
file accepts it within a second.

--replace makes another token for a NAME in the file. It keeps the role, the limits
and the expiry, except those that are given. Gateways refuse the old token within a
second.

The roles: publish; metrics (for Prometheus); read (and metrics); operate (all these, and
control of runs); approve (all rights). A trailing * matches any rest: --types "order-*".`,
		Examples: []command.Example{
			{"tidemill token new crm --role publish --types 'order-*' --keys 'shop-*' --expires 90d", "a caller that may publish orders of shops"},
			{"tidemill token new crm --replace", "a new token for crm, with the same rights"},
		},
		Make: func() command.Program { return &tokenNew{} },
	}
}

type tokenNew struct {
	accessFlag
	wanted  string // name of the token
	token   config.Token
	expires string
	replace bool
}

func (n *tokenNew) Flags(f *command.FlagSet) {
	f.Several(&n.token.Roles, "role", "ROLE", "publish, metrics, read, operate or approve; several with commas")
	f.Several(&n.token.Types, "types", "TYPES", "types that it may publish; several with commas; default all")
	f.Several(&n.token.Sources, "sources", "SOURCES", "sources that it may publish as; default all")
	f.Several(&n.token.Keys, "keys", "KEYS", "keys that it may publish, read and control; default all")
	f.Text(&n.expires, "expires", "", "WHEN", "90d, 12h, a date, a time, or never (default never)")
	f.Yes(&n.replace, "replace", "replace the token of this name; settings without a flag stay as they were")
	n.accessFlag.Flags(f)
}

func (n *tokenNew) Accept(positional []string) error {
	if len(n.token.Roles) == 0 && !n.replace {
		return command.Usagef("--role is missing: give one or more of %s", strings.Join(config.AccessRoles(), ", "))
	}
	for _, role := range n.token.Roles {
		if !slices.Contains(config.AccessRoles(), role) {
			return command.Usagef("--role %q:%s give one or more of %s", role, command.DidYouMean(role, config.AccessRoles()), strings.Join(config.AccessRoles(), ", "))
		}
	}
	n.wanted, n.token.Name = positional[0], positional[0]
	if n.expires == "" || n.expires == "never" {
		return nil
	}
	var err error
	n.token.Expires, err = parseExpiry(n.expires, time.Now())
	return err
}

func (n *tokenNew) Run(_ context.Context, s *command.Session, _ []string) error {
	token, hash := access.NewToken()
	n.token.Hash = hash
	if err := n.write(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.Stdout, token.Reveal()); err != nil {
		return fmt.Errorf("print the token: %w; %s has its hash, so make another with --replace", err, n.file)
	}
	until := ""
	if !n.token.Expires.IsZero() {
		until = "; until " + n.token.Expires.Format(time.RFC3339)
	}
	fmt.Fprintf(s.Stderr, "%s is in %s now (%s%s).\n", n.token.Name, n.file, mayDo(n.token), until)
	if n.replace {
		fmt.Fprintln(s.Stderr, "Its old token is refused within a second.")
	}
	fmt.Fprintln(s.Stderr, "The token is shown only once: store it as a secret.")
	return nil
}

func (n *tokenNew) write() (err error) {
	if n.replace {
		n.token, err = access.Replace(n.file, n.wanted, n.over)
	} else {
		err = access.Add(n.file, n.token)
	}
	switch {
	case errors.Is(err, access.ErrExists):
		return fmt.Errorf("%w: give --replace to make another token in place of %s's, or choose another name", err, n.token.Name)
	case errors.Is(err, access.ErrNotThere):
		return fmt.Errorf("%w, so there is nothing to replace:%s leave out --replace to make a new one", err, n.didYouMean())
	}
	return err
}

// over replaces the settings of the file by those of the call.
func (n *tokenNew) over(t *config.Token) error {
	t.Hash = n.token.Hash
	for _, limit := range []struct{ to, given *[]string }{
		{&t.Roles, &n.token.Roles}, {&t.Types, &n.token.Types}, {&t.Sources, &n.token.Sources}, {&t.Keys, &n.token.Keys},
	} {
		if *limit.given != nil {
			*limit.to = *limit.given
		}
	}
	switch {
	case n.expires != "":
		t.Expires = n.token.Expires
	case !t.Expires.IsZero() && !t.Expires.After(time.Now()):
		return fmt.Errorf("%s expired on %s, and a new token would have the same expiry: give --expires", t.Name, t.Expires.Format(time.RFC3339))
	}
	return nil
}

func (n *tokenNew) didYouMean() string {
	a, err := config.LoadAccess(n.file)
	if err != nil {
		return ""
	}
	var names []string
	for _, t := range a.Tokens {
		names = append(names, t.Name)
	}
	return command.DidYouMean(n.wanted, names)
}

// parseExpiry parses the time when a token expires. It must be in the future.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	at, err := readExpiry(text, now)
	if err != nil {
		return time.Time{}, command.Usagef("--expires %q is not a time in the future: give a span such as 90d or 12h, a date such as 2027-01-31, a time such as 2027-01-31T18:00:00Z, or never", text)
	}
	if !at.After(now) {
		return time.Time{}, command.Usagef("--expires %q is in the past", text)
	}
	return at.UTC().Truncate(time.Second), nil
}

func readExpiry(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	units := map[string]time.Duration{"h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
	unit, ok := units[text[len(text)-1:]]
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 16) // 16 bits: at most 1,256 years
	if !ok || err != nil {
		return time.Time{}, errors.New("no time")
	}
	return now.Add(time.Duration(n) * unit), nil
}

func tokenListCommand() command.Command {
	return command.Command{
		Name:    "token list",
		Watched: true,
		Aliases: []string{"ls"},
		Summary: "list the callers with a token, and their rights",
		About:   "It shows no secrets: the access file has none.",
		Examples: []command.Example{
			{"tidemill token list", "a table"},
			{"tidemill token list --file access.yaml -o json", "for a script"},
		},
		Make: func() command.Program { return &tokenList{} },
	}
}

type tokenList struct {
	accessFlag
	output string
}

func (l *tokenList) Flags(f *command.FlagSet) {
	f.Format(&l.output, "text or json")
	l.accessFlag.Flags(f)
}

func (l *tokenList) Run(_ context.Context, s *command.Session, _ []string) error {
	a, err := config.LoadAccess(l.file)
	if err != nil {
		return err
	}
	if l.output == "json" {
		return writeTokens(s.Stdout, a)
	}
	if len(a.Tokens) == 0 {
		fmt.Fprintf(s.Stderr, "%s lists no tokens; tidemill token new makes one.\n", l.file)
		return nil
	}
	return tabulateTokens(s.Stdout, a, time.Now())
}

func tabulateTokens(w io.Writer, a *config.Access, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head, teams := "NAME\tROLE\tTYPES\tSOURCES\tKEYS\tEXPIRES", len(a.Teams) > 0
	if teams {
		head += "\tTEAMS"
	}
	fmt.Fprintln(t, head)
	for _, k := range a.Tokens {
		expires := "never"
		if !k.Expires.IsZero() {
			expires = k.Expires.Format(time.RFC3339)
			if !now.Before(k.Expires) {
				expires += " (has expired)"
			}
		}
		if teams {
			expires += "\t" + cmp.Or(strings.Join(a.TeamsOf(k.Name), ", "), "-")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", k.Name, strings.Join(k.Roles, ", "), patternsOf(k.Types), patternsOf(k.Sources), patternsOf(k.Keys), expires)
	}
	return t.Flush()
}

func patternsOf(patterns []string) string {
	if patterns == nil {
		return "all"
	}
	return strings.Join(patterns, ", ")
}

// tokenJSON is the JSON of a token. A null list means no limit.
type tokenJSON struct {
	Name    string     `json:"name"`
	Roles   []string   `json:"roles"`
	Types   []string   `json:"types"`
	Sources []string   `json:"sources"`
	Keys    []string   `json:"keys"`
	Expires *time.Time `json:"expires"` // null means never
	Teams   []string   `json:"teams,omitempty"`
}

func writeTokens(w io.Writer, a *config.Access) error {
	all := make([]tokenJSON, 0, len(a.Tokens))
	for _, t := range a.Tokens {
		one := tokenJSON{Name: t.Name, Roles: t.Roles, Types: t.Types, Sources: t.Sources, Keys: t.Keys, Teams: a.TeamsOf(t.Name)}
		if !t.Expires.IsZero() {
			one.Expires = &t.Expires
		}
		all = append(all, one)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

func tokenRemoveCommand() command.Command {
	return command.Command{
		Name:     "token remove",
		Aliases:  []string{"rm"},
		Args:     "NAME",
		Summary:  "remove a token: it is refused from now on",
		About:    "A gateway that runs with the access file refuses the token within a second.",
		Examples: []command.Example{{"tidemill token remove crm", "crm's"}},
		Make:     func() command.Program { return &tokenRemove{} },
	}
}

type tokenRemove struct{ accessFlag }

func (r *tokenRemove) Run(_ context.Context, s *command.Session, positional []string) error {
	if err := access.Remove(r.file, positional[0]); err != nil {
		return fmt.Errorf("%w; tidemill token list lists the tokens", err)
	}
	fmt.Fprintf(s.Stderr, "%s is removed from %s, and its token is refused.\n", positional[0], r.file)
	return nil
}
