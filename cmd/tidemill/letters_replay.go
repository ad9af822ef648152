package main

import (
	"context"
	"fmt"
	"strings"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func lettersReplayCommand() command {
	return command{
		name:    "dead-letters replay",
		args:    "[ID…]",
		summary: "deliver dead letters after all",
		about: `Each goes to the trigger that failed and to no other, in order of its key. It waits
for the receipts and shows them as they come; Ctrl-C or --no-wait leaves the
replay to the dispatchers. What fails again is a new dead letter. Asking again
does nothing to letters that are being replayed. --reason finds a part of the
letters' reason.

` + atTheGate,
		examples: []example{
			{"tidemill dl replay 3k7mzq", "one, by the beginning of its id"},
			{"tidemill dl replay --trigger tell-crm --rate 50/s", "all of one trigger, gently"},
			{"tidemill dl replay --trigger tell-crm --since -1h --dry-run", "how many that would be"},
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
		if wait, err = followReceipts(ctx, g, s); err != nil { // before it is asked for, so that none is missed
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

// ask asks as often as there are letters left.
func (p *letterReplay) ask(ctx context.Context, g *remote.Gateway, of api.LetterSelection, wait *receipts) (*api.LetterDone, error) {
	var all api.LetterDone
	for {
		got, err := g.ReplayLetters(ctx, api.LetterAsk{Selection: of, Rate: p.perSecond, DryRun: p.dryRun})
		if err != nil {
			return nil, err
		}
		if wait != nil {
			wait.expect(got.Letters)
		}
		all.Letters, all.Acts = append(all.Letters, got.Letters...), append(all.Acts, got.Acts...)
		if len(all.Letters) == len(got.Letters) { // the first
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
		fmt.Fprintf(s.stderr, "%s: being replayed already.\n", count(got.Replaying, "dead letter"))
	}
	n := count(len(got.Letters)+got.Left, "dead letter")
	switch {
	case p.dryRun:
		fmt.Fprintf(s.stdout, "%s would be replayed. Next: the same without --dry-run.\n", n)
	case len(got.Letters) == 0:
		fmt.Fprintln(s.stdout, "Nothing is left to be replayed.")
	case p.noWait:
		fmt.Fprintf(s.stdout, "%s are on their way. Next: tidemill dl lists those that fail again.\n", n)
	default:
		fmt.Fprintf(s.stderr, "%s on the way; Ctrl-C leaves it to the dispatchers.\n", n)
	}
}

// sayWhatDelays tells who waits what he may wait for in vain.
func sayWhatDelays(ctx context.Context, g *remote.Gateway, s *session, got *api.LetterDone) {
	now, err := g.Triggers(ctx)
	if err != nil {
		return // the receipts will tell
	}
	if now.Dispatchers != nil && *now.Dispatchers == 0 {
		fmt.Fprintln(s.stderr, "Nothing delivers now: no dispatcher runs. tidemill up or tidemill serve dispatcher starts one.")
	}
	var asked strings.Builder
	for _, act := range got.Acts {
		fmt.Fprintf(&asked, "\n%s\n", act.Trigger)
	}
	for _, t := range now.Triggers {
		if t.State == api.TriggerPaused && strings.Contains(asked.String(), "\n"+t.Name+"\n") {
			fmt.Fprintf(s.stderr, "%s is %s: its letters wait until tidemill triggers resume %s\n", harmless(t.Name), harmless(stateOf(&t)), harmless(t.Name))
		}
	}
}
