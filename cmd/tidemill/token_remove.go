package main

import (
	"context"
	"fmt"

	"tidemill.dev/internal/access"
)

func tokenRemoveCommand() command {
	return command{
		name:     "token remove",
		args:     "NAME",
		summary:  "have a token refused from now on",
		about:    "A gateway that runs with the access file refuses the token within a second.",
		examples: []example{{"tidemill token remove crm", "crm's"}},
		make:     func() program { return &tokenRemove{} },
	}
}

type tokenRemove struct{ accessFlag }

func (*tokenRemove) accept(positional []string) error { return wants(positional, "NAME") }

func (r *tokenRemove) run(_ context.Context, s *session, positional []string) error {
	if err := access.Remove(r.file, positional[0]); err != nil {
		return fmt.Errorf("%w; tidemill token list shows those there are", err)
	}
	fmt.Fprintf(s.stderr, "%s is gone from %s, and its token refused.\n", positional[0], r.file)
	return nil
}
