package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/access"
)

func tokenNewCommand() command {
	return command{
		name:    "token new",
		args:    "NAME",
		summary: "make a token for a caller of the gateway",
		about: `NAME is the caller's: what it publishes has it as authid. The token is printed
once, alone on stdout, and kept nowhere; the access file gets its hash. A gateway
that runs with the file takes it up within a second.

--replace makes another token for a NAME that stands in the file, with the role, the
limits and the expiry that it has but for those that are given; gateways refuse the
old one within a second.

The roles: publish; read; operate, which is both and acting on runs; approve,
which is all. A trailing * stands for any rest: --types "order-*".`,
		examples: []example{
			{"tidemill token new crm --role publish --types 'order-*' --keys 'shop-*' --expires 90d", "may publish orders of shops"},
			{"tidemill token new crm --replace", "another token in place of crm's, that may do the same"},
		},
		make: func() program { return &tokenNew{} },
	}
}

type tokenNew struct {
	accessFlag
	wanted  string // the name
	token   config.Token
	expires string
	replace bool
}

func (n *tokenNew) flags(f *flagSet) {
	f.several(&n.token.Roles, "role", "ROLE", "publish, read, operate or approve; several with commas")
	f.several(&n.token.Types, "types", "TYPES", "types that it may publish; several with commas; default all")
	f.several(&n.token.Sources, "sources", "SOURCES", "sources that it may publish as; default all")
	f.several(&n.token.Keys, "keys", "KEYS", "keys that it may publish, read and act on; default all")
	f.text(&n.expires, "expires", "", "WHEN", "90d, 12h, a date, a time, or never, which is the default")
	f.yes(&n.replace, "replace", "put another in place of the token that has the name; what no flag says stays as it was")
	n.accessFlag.flags(f)
}

func (n *tokenNew) accept(positional []string) error {
	if err := wants(positional, "NAME"); err != nil {
		return err
	}
	if len(n.token.Roles) == 0 && !n.replace {
		return usagef("--role is missing: give one or more of %s", strings.Join(config.AccessRoles(), ", "))
	}
	for _, role := range n.token.Roles {
		if !slices.Contains(config.AccessRoles(), role) {
			return usagef("--role %q:%s give one or more of %s", role, didYouMean(role, config.AccessRoles()), strings.Join(config.AccessRoles(), ", "))
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

func (n *tokenNew) run(_ context.Context, s *session, _ []string) error {
	token, hash := access.NewToken()
	n.token.Hash = hash
	if err := n.write(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.stdout, token.Reveal()); err != nil {
		return fmt.Errorf("print the token: %w; %s has its hash, so make another with --replace", err, n.file)
	}
	until := ""
	if !n.token.Expires.IsZero() {
		until = "; until " + n.token.Expires.Format(time.RFC3339)
	}
	fmt.Fprintf(s.stderr, "%s stands in %s now (%s%s).\n", n.token.Name, n.file, mayDo(n.token), until)
	if n.replace {
		fmt.Fprintln(s.stderr, "Its old token is refused within a second.")
	}
	fmt.Fprintln(s.stderr, "The token is shown this once: keep it where secrets are kept.")
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

// over puts what the call says over what the file says.
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
		return fmt.Errorf("%s expired on %s, and so would its new token have: give --expires", t.Name, t.Expires.Format(time.RFC3339))
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
	return didYouMean(n.wanted, names)
}

// parseExpiry reads when a token shall end, which lies ahead.
func parseExpiry(text string, now time.Time) (time.Time, error) {
	at, err := readExpiry(text, now)
	if err != nil {
		return time.Time{}, usagef("--expires %q is no time to come: give a span such as 90d or 12h, a date such as 2027-01-31, a time such as 2027-01-31T18:00:00Z, or never", text)
	}
	if !at.After(now) {
		return time.Time{}, usagef("--expires %q is past already", text)
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
	n, err := strconv.ParseUint(text[:len(text)-1], 10, 16) // at most 1,256 years
	if !ok || err != nil {
		return time.Time{}, errors.New("no time")
	}
	return now.Add(time.Duration(n) * unit), nil
}
