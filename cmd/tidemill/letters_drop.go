package main

import (
	"context"
	"fmt"
	"strings"

	"tidemill.dev/internal/api"
)

func lettersDropCommand() command {
	return command{
		name:    "dead-letters drop",
		args:    "[ID…]",
		summary: "resolve dead letters without a delivery, for a reason",
		about: `They leave the list, and their receipts tell who dropped them and why. Nothing is
deleted: the letters stay on the stream dead-letters. --with selects by a part of
the letters' own reason.

` + atTheGate,
		examples: []example{
			{"tidemill dl drop 3k7mzq --reason 'a test of ours'", "one, by the beginning of its id"},
			{"tidemill dl drop --trigger tell-crm --until -7d --reason 'too old to matter' --dry-run", "how many that would be"},
		},
		make: func() program { return &letterDrop{} },
	}
}

type letterDrop struct {
	letterAsk
	reason string
}

func (d *letterDrop) flags(f *flagSet) {
	f.text(&d.reason, "reason", "", "TEXT", "why, for the receipts")
	d.letterAsk.flags(f, "with") // its own reason has the flag of that name
}

func (d *letterDrop) accept(positional []string) error {
	if strings.TrimSpace(d.reason) == "" {
		return usagef("--reason is missing: say why they are dropped; to select by the letters' own reason, use --with")
	}
	return d.letterAsk.accept(positional)
}

func (d *letterDrop) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := d.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	selection, err := d.selection(ctx, g, positional)
	if err != nil {
		return err
	}
	dropped := 0
	for {
		got, err := g.DropLetters(ctx, api.LetterAsk{Selection: selection, Reason: d.reason, DryRun: d.dryRun})
		if err != nil {
			return err
		}
		dropped += len(got.Letters)
		if d.dryRun || got.Left == 0 || len(got.Letters) == 0 {
			return d.tell(s, dropped, &got)
		}
		fmt.Fprintf(s.stderr, "%s dropped, %s to go.\n", thousands(int64(dropped)), thousands(int64(got.Left)))
	}
}

func (d *letterDrop) tell(s *session, dropped int, got *api.LetterDone) error {
	sayRefused(s.stderr, got)
	if got.Replaying > 0 {
		fmt.Fprintf(s.stderr, "Not %s: being replayed, and that ends by itself.\n", count(got.Replaying, "dead letter"))
	}
	if d.dryRun {
		fmt.Fprintf(s.stdout, "%s would be dropped. Next: the same without --dry-run.\n", count(dropped+got.Left, "dead letter"))
		return nil
	}
	fmt.Fprintf(s.stdout, "Dropped %s.\n", count(dropped, "dead letter"))
	if dropped == 0 && len(got.Refused) > 0 {
		return errReported
	}
	return nil
}
