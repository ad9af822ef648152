package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/config"
)

func tokenListCommand() command {
	return command{
		name:    "token list",
		summary: "list who has a token, and what they may do",
		about:   "It shows no secrets: the access file holds none.",
		examples: []example{
			{"tidemill token list", "a table"},
			{"tidemill token list --file access.yaml -o json", "for a script"},
		},
		make: func() program { return &tokenList{output: "text"} },
	}
}

type tokenList struct {
	accessFlag
	output string
}

func (l *tokenList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.accessFlag.flags(f)
}

func (l *tokenList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *tokenList) run(_ context.Context, s *session, _ []string) error {
	a, err := config.LoadAccess(l.file)
	if err != nil {
		return err
	}
	if l.output == "json" {
		return writeTokens(s.stdout, a.Tokens)
	}
	if len(a.Tokens) == 0 {
		fmt.Fprintf(s.stderr, "%s lists no tokens; tidemill token new makes one.\n", l.file)
		return nil
	}
	return tabulateTokens(s.stdout, a.Tokens, time.Now())
}

func tabulateTokens(w io.Writer, tokens []config.Token, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tROLE\tTYPES\tSOURCES\tKEYS\tEXPIRES")
	for _, k := range tokens {
		expires := "never"
		if !k.Expires.IsZero() {
			expires = k.Expires.Format(time.RFC3339)
			if !now.Before(k.Expires) {
				expires += " (has expired)"
			}
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

// tokenJSON is what -o json prints of a token. A null list is all.
type tokenJSON struct {
	Name    string     `json:"name"`
	Roles   []string   `json:"roles"`
	Types   []string   `json:"types"`
	Sources []string   `json:"sources"`
	Keys    []string   `json:"keys"`
	Expires *time.Time `json:"expires"` // null is never
}

func writeTokens(w io.Writer, tokens []config.Token) error {
	all := make([]tokenJSON, 0, len(tokens))
	for _, t := range tokens {
		one := tokenJSON{Name: t.Name, Roles: t.Roles, Types: t.Types, Sources: t.Sources, Keys: t.Keys}
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
