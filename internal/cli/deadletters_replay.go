package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

// letterAsk has the flags of the commands that replay or drop dead letters.
type letterAsk struct {
	gate
	letterFlags
	all, dryRun bool
}

func (a *letterAsk) flags(f *flagSet, reason string) {
	a.letterFlags.flags(f, reason)
	f.yes(&a.all, "all", "all open dead letters")
	f.yes(&a.dryRun, "dry-run", "only show what would be done")
	a.gate.flags(f)
}

func (a *letterAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return usagef("--all selects all: leave out the other flags and ids, or --all")
	case !a.all && !a.says() && len(positional) == 0:
		return usagef("say which dead letters: an ID, a flag such as --trigger NAME, or --all")
	}
	return a.check()
}

// selection returns the selected dead letters, with full ids.
func (a *letterAsk) selection(ctx context.Context, g *client.Gateway, ids []string) (api.LetterSelection, error) {
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

// sayRefused prints which dead letters were refused, and why.
func sayRefused(w io.Writer, done *api.LetterDone) {
	for _, g := range done.Refused {
		fmt.Fprintf(w, "Skipped %s", count(g.Count, "dead letter"))
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

func lettersReplayCommand() command {
	return command{
		name:    "dead-letters replay",
		args:    "[ID…]",
		summary: "replay dead letters",
		about: `Each event goes only to the trigger that failed, in order of its key. The command waits
for the receipts and prints them. With Ctrl-C or --no-wait the dispatchers continue
without it. An event that fails again is a new dead letter. A second call skips dead
letters that are being replayed. --reason matches a part of their reason.

An event that a scorer could not score is scored again, and its answer goes to the
scorer's output. If it still cannot be scored, its dead letter stays open.

` + atTheGate,
		examples: []example{
			{"tidemill dl replay 3k7mzq", "one, by the beginning of its id"},
			{"tidemill dl replay --trigger tell-crm --rate 50/s", "all of one trigger, slowly"},
			{"tidemill dl replay --trigger tell-crm --since -1h --dry-run", "only count them"},
			{"tidemill dl replay --scorer intents --key bot-42", "score the events of a key that has a model now"},
		},
		make: func() program { return &letterReplay{} },
	}
}

type letterReplay struct {
	letterAsk
	rate   string
	noWait bool

	perSecond float64
}

func (p *letterReplay) flags(f *flagSet) {
	f.text(&p.rate, "rate", "", "RATE", "no faster than this for each trigger, such as 50/s")
	f.yes(&p.noWait, "no-wait", "do not wait for the receipts")
	p.letterAsk.flags(f, "reason")
}

func (p *letterReplay) accept(positional []string) (err error) {
	if p.perSecond, err = parseRate(p.rate); err != nil {
		return err
	}
	return p.letterAsk.accept(positional)
}

func (p *letterReplay) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	selection, err := p.selection(ctx, g, positional)
	if err != nil {
		return err
	}
	var wait *receipts
	if !p.noWait && !p.dryRun {
		if wait, err = followReceipts(ctx, g, s); err != nil { // before the request, so that no receipt is missed
			return err
		}
		defer wait.close()
	}
	got, err := p.ask(ctx, g, selection, wait)
	if err != nil {
		return err
	}
	p.tell(s, got)
	switch {
	case got.Matched == 0 && len(got.Refused) > 0 || len(got.Letters) == 0 && len(got.Refused) > 0:
		return errReported
	case wait == nil || len(got.Letters) == 0:
		return nil
	}
	sayWhatDelays(ctx, g, s, got)
	return wait.run(ctx)
}

// ask sends requests until no dead letters are left.
func (p *letterReplay) ask(ctx context.Context, g *client.Gateway, of api.LetterSelection, wait *receipts) (*api.LetterDone, error) {
	var all api.LetterDone
	for {
		got, err := g.ReplayLetters(ctx, api.LetterAsk{Selection: of, Rate: p.perSecond, DryRun: p.dryRun})
		if err != nil {
			return nil, err
		}
		if wait != nil {
			wait.expect(got.Letters)
		}
		all.Letters, all.Commands = append(all.Letters, got.Letters...), append(all.Commands, got.Commands...)
		if len(all.Letters) == len(got.Letters) { // the first request
			all.Matched, all.Replaying, all.Refused = got.Matched, got.Replaying, got.Refused
		}
		if all.Left = got.Left; p.dryRun || got.Left == 0 || len(got.Letters) == 0 {
			return &all, nil
		}
	}
}

func (p *letterReplay) tell(s *session, got *api.LetterDone) {
	sayRefused(s.stderr, got)
	if got.Replaying > 0 {
		fmt.Fprintf(s.stderr, "%s: already being replayed.\n", count(got.Replaying, "dead letter"))
	}
	n := count(len(got.Letters)+got.Left, "dead letter")
	switch {
	case p.dryRun:
		fmt.Fprintf(s.stdout, "%s would be replayed. Next: the same without --dry-run.\n", n)
	case len(got.Letters) == 0 && len(got.Refused) > 0:
		fmt.Fprintln(s.stdout, "Nothing was replayed.")
	case len(got.Letters) == 0:
		fmt.Fprintln(s.stdout, "There is nothing to replay.")
	case p.noWait:
		fmt.Fprintf(s.stdout, "Replaying %s. Next: tidemill dl lists those that fail again.\n", n)
	default:
		fmt.Fprintf(s.stderr, "Replaying %s; after Ctrl-C the dispatchers continue.\n", n)
	}
}

// sayWhatDelays prints why a receipt may never come: no dispatcher runs, or a trigger is paused.
func sayWhatDelays(ctx context.Context, g *client.Gateway, s *session, got *api.LetterDone) {
	now, err := g.Triggers(ctx)
	if err != nil {
		return // the receipts come without this advice
	}
	if now.Dispatchers != nil && *now.Dispatchers == 0 {
		fmt.Fprintln(s.stderr, "No dispatcher runs, so nothing is delivered. tidemill up or tidemill serve dispatcher starts one.")
	}
	var asked strings.Builder
	for _, act := range got.Commands {
		fmt.Fprintf(&asked, "\n%s\n", act.Trigger)
	}
	for _, t := range now.Triggers {
		if t.State == api.TriggerPaused && strings.Contains(asked.String(), "\n"+t.Name+"\n") {
			fmt.Fprintf(s.stderr, "%s is %s: its dead letters wait until tidemill triggers resume %s\n", harmless(t.Name), harmless(stateOf(&t)), harmless(t.Name))
		}
	}
}

func lettersDropCommand() command {
	return command{
		name:    "dead-letters drop",
		args:    "[ID…]",
		summary: "drop dead letters, with a reason",
		about: `They are no longer listed. Their receipts record the caller and the reason. Nothing is
deleted: they stay on the stream dead-letters. --with matches a part of their own
reason.

` + atTheGate,
		examples: []example{
			{"tidemill dl drop 3k7mzq --reason 'a test of ours'", "one, by the beginning of its id"},
			{"tidemill dl drop --trigger tell-crm --until -7d --reason 'too old to matter' --dry-run", "only count them"},
		},
		make: func() program { return &letterDrop{} },
	}
}

type letterDrop struct {
	letterAsk
	reason string
}

func (d *letterDrop) flags(f *flagSet) {
	f.text(&d.reason, "reason", "", "TEXT", "reason, for the receipts")
	d.letterAsk.flags(f, "with") // because --reason is the reason of the drop
}

func (d *letterDrop) accept(positional []string) error {
	if strings.TrimSpace(d.reason) == "" {
		return usagef("--reason is missing: say why they are dropped; to select by their own reason, use --with")
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
		fmt.Fprintf(s.stderr, "%s dropped, %s left.\n", thousands(int64(dropped)), thousands(int64(got.Left)))
	}
}

func (d *letterDrop) tell(s *session, dropped int, got *api.LetterDone) error {
	sayRefused(s.stderr, got)
	if got.Replaying > 0 {
		fmt.Fprintf(s.stderr, "Skipped %s: being replayed.\n", count(got.Replaying, "dead letter"))
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
