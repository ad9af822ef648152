package remote

import (
	"context"
	"fmt"
	"io"
	"strings"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// letterAsk has the flags of the commands that replay or drop dead letters.
type letterAsk struct {
	letterFlags
	all, dryRun bool
}

func (a *letterAsk) add(f *command.FlagSet, reason string) {
	a.letterFlags.flags(f, reason)
	f.Yes(&a.all, "all", "all open dead letters")
	f.Yes(&a.dryRun, "dry-run", "only show what would be done")
}

func (a *letterAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return command.Usagef("--all selects all: leave out the other flags and ids, or --all")
	case !a.all && !a.says() && len(positional) == 0:
		return command.Usagef("say which dead letters: an ID, a flag such as --trigger NAME, or --all")
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
		fmt.Fprintf(w, "Skipped %s", show.Count(g.Count, "dead letter"))
		for i, id := range g.Letters {
			if i == 5 {
				fmt.Fprint(w, " …")
				break
			}
			fmt.Fprintf(w, " %s", show.ShortID(id))
		}
		fmt.Fprintf(w, ": %s\n", show.Harmless(g.Reason))
	}
}

func lettersReplayCommand() command.Command {
	return command.Command{
		Name:    "dead-letters replay",
		Args:    "[ID…]",
		Summary: "replay dead letters",
		About: `Each event goes only to the trigger that failed, in order of its key. The command waits
for the receipts and prints them. With Ctrl-C or --no-wait the dispatchers continue
without it. An event that fails again is a new dead letter. A second call skips dead
letters that are being replayed. --reason matches a part of their reason.

An event that a scorer could not score is scored again, and its answer goes to the
scorer's output. If it still cannot be scored, its dead letter stays open.`,
		Examples: []command.Example{
			{"tidemill dl replay 3k7mzq", "one, by the beginning of its id"},
			{"tidemill dl replay --trigger tell-crm --rate 50/s", "all of one trigger, slowly"},
			{"tidemill dl replay --trigger tell-crm --since -1h --dry-run", "only count them"},
			{"tidemill dl replay --scorer intents --key bot-42", "score the events of a key that has a model now"},
		},
		Make: func() command.Program {
			p := &letterReplay{}
			return &request{flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type letterReplay struct {
	letterAsk
	rate   string
	noWait bool

	perSecond float64
}

func (p *letterReplay) flags(f *command.FlagSet) {
	f.Text(&p.rate, "rate", "", "RATE", "no faster than this for each trigger, such as 50/s")
	f.Yes(&p.noWait, "no-wait", "do not wait for the receipts")
	p.letterAsk.add(f, "reason")
}

func (p *letterReplay) accept(positional []string) (err error) {
	if p.perSecond, err = parseRate(p.rate); err != nil {
		return err
	}
	return p.letterAsk.accept(positional)
}

func (p *letterReplay) do(ctx context.Context, c *call) error {
	selection, err := p.selection(ctx, c.g, c.positional)
	if err != nil {
		return err
	}
	var wait *receipts
	if !p.noWait && !p.dryRun {
		if wait, err = followReceipts(ctx, c.g, c.Session); err != nil { // before the request, so that no receipt is missed
			return err
		}
		defer wait.close()
	}
	got, err := p.ask(ctx, c.g, selection, wait)
	if err != nil {
		return err
	}
	p.tell(c.Session, got)
	switch {
	case got.Matched == 0 && len(got.Refused) > 0 || len(got.Letters) == 0 && len(got.Refused) > 0:
		return command.ErrReported
	case wait == nil || len(got.Letters) == 0:
		return nil
	}
	sayWhatDelays(ctx, c.g, c.Session, got)
	return wait.run(ctx)
}

// ask sends requests until no dead letters are left.
func (p *letterReplay) ask(ctx context.Context, g *client.Gateway, of api.LetterSelection, wait *receipts) (*api.LetterDone, error) {
	var all api.LetterDone
	for {
		got, err := g.ReplayLetters(ctx, api.LetterAsk{Selection: of, Rate: p.perSecond, DryRun: p.dryRun})
		if n := len(all.Letters); err != nil && n > 0 {
			return nil, fmt.Errorf("%w; the replay of %s has begun already", err, show.Count(n, "dead letter"))
		}
		if err != nil {
			return nil, err
		}
		if wait != nil {
			wait.expect(got.Letters)
		}
		all.Letters, all.Commands = append(all.Letters, got.Letters...), append(all.Commands, got.Commands...)
		if len(all.Letters) == len(got.Letters) { // the first request
			all.Matched, all.Replaying = got.Matched, got.Replaying
		}
		all.Refused = got.Refused // of all that are still open
		if all.Left = got.Left; p.dryRun || got.Left == 0 || len(got.Letters) == 0 {
			return &all, nil
		}
	}
}

func (p *letterReplay) tell(s *command.Session, got *api.LetterDone) {
	sayRefused(s.Stderr, got)
	if got.Replaying > 0 {
		fmt.Fprintf(s.Stderr, "%s: already being replayed.\n", show.Count(got.Replaying, "dead letter"))
	}
	n := show.Count(len(got.Letters), "dead letter")
	if got.Left > 0 && !p.dryRun {
		fmt.Fprintf(s.Stderr, "%s not tried: give the same command again.\n", show.Count(got.Left, "dead letter"))
	}
	switch {
	case p.dryRun:
		fmt.Fprintf(s.Stdout, "%s would be replayed. Next: the same without --dry-run.\n", show.Count(len(got.Letters)+got.Left, "dead letter"))
	case len(got.Letters) == 0 && len(got.Refused) > 0:
		fmt.Fprintln(s.Stdout, "Nothing was replayed.")
	case len(got.Letters) == 0:
		fmt.Fprintln(s.Stdout, "There is nothing to replay.")
	case p.noWait:
		fmt.Fprintf(s.Stdout, "Replaying %s. Next: tidemill dl lists those that fail again.\n", n)
	default:
		fmt.Fprintf(s.Stderr, "Replaying %s; after Ctrl-C the dispatchers continue.\n", n)
	}
}

// sayWhatDelays prints why a receipt may never come: no dispatcher runs, or a trigger is paused.
func sayWhatDelays(ctx context.Context, g *client.Gateway, s *command.Session, got *api.LetterDone) {
	now, err := g.Triggers(ctx)
	if err != nil {
		return // the receipts come without this advice
	}
	if now.Dispatchers != nil && *now.Dispatchers == 0 {
		fmt.Fprintln(s.Stderr, "No dispatcher runs, so nothing is delivered. tidemill up or tidemill serve dispatcher starts one.")
	}
	var asked strings.Builder
	for _, act := range got.Commands {
		fmt.Fprintf(&asked, "\n%s\n", act.Trigger)
	}
	for _, t := range now.Triggers {
		if t.State == api.TriggerPaused && strings.Contains(asked.String(), "\n"+t.Name+"\n") {
			fmt.Fprintf(s.Stderr, "%s is %s: its dead letters wait until tidemill triggers resume %s\n", show.Harmless(t.Name), show.Harmless(stateOf(&t)), show.Harmless(t.Name))
		}
	}
}

func lettersDropCommand() command.Command {
	return command.Command{
		Name:    "dead-letters drop",
		Args:    "[ID…]",
		Summary: "drop dead letters, with a reason",
		About: `They are no longer listed. Their receipts record the caller and the reason. Nothing is
deleted: they stay on the stream dead-letters. --with matches a part of their own
reason.`,
		Examples: []command.Example{
			{"tidemill dl drop 3k7mzq --reason 'a test of ours'", "one, by the beginning of its id"},
			{"tidemill dl drop --trigger tell-crm --until -7d --reason 'too old to matter' --dry-run", "only count them"},
		},
		Make: func() command.Program {
			d := &letterDrop{}
			return &request{flags: d.flags, accept: d.accept, do: d.do}
		},
	}
}

type letterDrop struct {
	letterAsk
	reason string
}

func (d *letterDrop) flags(f *command.FlagSet) {
	f.Text(&d.reason, "reason", "", "TEXT", "reason, for the receipts")
	d.letterAsk.add(f, "with") // because --reason is the reason of the drop
}

func (d *letterDrop) accept(positional []string) error {
	if strings.TrimSpace(d.reason) == "" {
		return command.Usagef("--reason is missing: say why they are dropped; to select by their own reason, use --with")
	}
	return d.letterAsk.accept(positional)
}

func (d *letterDrop) do(ctx context.Context, c *call) error {
	selection, err := d.selection(ctx, c.g, c.positional)
	if err != nil {
		return err
	}
	dropped := 0
	for {
		got, err := c.g.DropLetters(ctx, api.LetterAsk{Selection: selection, Reason: d.reason, DryRun: d.dryRun})
		if err != nil {
			return err
		}
		dropped += len(got.Letters)
		if d.dryRun || got.Left == 0 || len(got.Letters) == 0 {
			return d.tell(c.Session, dropped, &got)
		}
		fmt.Fprintf(c.Stderr, "%s dropped, %s left.\n", show.Thousands(int64(dropped)), show.Thousands(int64(got.Left)))
	}
}

func (d *letterDrop) tell(s *command.Session, dropped int, got *api.LetterDone) error {
	sayRefused(s.Stderr, got)
	if got.Replaying > 0 {
		fmt.Fprintf(s.Stderr, "Skipped %s: being replayed.\n", show.Count(got.Replaying, "dead letter"))
	}
	if d.dryRun {
		fmt.Fprintf(s.Stdout, "%s would be dropped. Next: the same without --dry-run.\n", show.Count(dropped+got.Left, "dead letter"))
		return nil
	}
	fmt.Fprintf(s.Stdout, "Dropped %s.\n", show.Count(dropped, "dead letter"))
	if dropped == 0 && len(got.Refused) > 0 {
		return command.ErrReported
	}
	return nil
}
