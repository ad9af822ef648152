package main

import (
	"context"
	"fmt"
	"io"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// letterAsk is the flags of what is done with dead letters.
type letterAsk struct {
	gate
	letterFlags
	all, dryRun bool
}

func (a *letterAsk) flags(f *flagSet, reason string) {
	a.letterFlags.flags(f, reason)
	f.yes(&a.all, "all", "all that are open")
	f.yes(&a.dryRun, "dry-run", "only say what would be done")
	a.gate.flags(f)
}

func (a *letterAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return usagef("--all means all: leave out the others, or --all")
	case !a.all && !a.says() && len(positional) == 0:
		return usagef("say which: an ID, a flag such as --trigger NAME, or --all")
	}
	return a.check()
}

// selection is what is meant, the ids written out.
func (a *letterAsk) selection(ctx context.Context, g *remote.Gateway, ids []string) (api.LetterSelection, error) {
	s := a.LetterSelection
	s.All = a.all
	for _, id := range ids {
		whole, err := g.DeadLetter(ctx, id)
		if err != nil {
			return s, err
		}
		s.IDs = append(s.IDs, whole.Letter.ID)
	}
	return s, nil
}

// sayRefused tells with which letters it cannot be done, and why.
func sayRefused(w io.Writer, done *api.LetterDone) {
	for _, g := range done.Refused {
		fmt.Fprintf(w, "Not %s", count(g.Count, "dead letter"))
		for i, id := range g.Letters {
			if i == 5 {
				fmt.Fprint(w, " …")
				break
			}
			fmt.Fprintf(w, " %s", shortID(id))
		}
		fmt.Fprintf(w, ": %s\n", harmless(g.Reason))
	}
}
