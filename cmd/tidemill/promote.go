package main

import (
	"context"
	"fmt"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func promoteCommand() command {
	return command{
		name:    "promote",
		args:    "MODEL@VERSION",
		summary: "make a version the champion by hand",
		about: `One that awaits a person, or was the champion before. One that its gate has refused needs
--force. If the champion changes meanwhile, nothing is done. It needs the role approve.

` + atTheGate,
		examples: []example{
			{"tidemill promote intent/bot-42@8", "what awaits a person"},
			{"tidemill promote intent/bot-42@newest --force --reason 'the test data was wrong'", "what the gate has refused"},
			{"tidemill promote intent/bot-42@8 --dry-run", "whether it could be"},
		},
		make: func() program {
			return &promotion{action: tidemill.ActionPromote, version: true}
		},
	}
}

func rollbackCommand() command {
	return command{
		name:    "rollback",
		args:    "MODEL[@VERSION]",
		summary: "make the champion before the champion again, or an older one",
		about: `Only what was the champion once can be rolled back to. The next version that passes its
gate takes its place again: pin it, or freeze promotions, to keep it. It needs the role
approve.

` + atTheGate,
		examples: []example{
			{"tidemill rollback intent/bot-42 --reason 'it greets everybody'", "to the champion before"},
			{"tidemill rollback intent/bot-42@3", "to a version that is named"},
		},
		make: func() program { return &promotion{action: tidemill.ActionRollback} },
	}
}

func pinCommand() command {
	return command{
		name:    "pin",
		args:    "MODEL[@VERSION]",
		summary: "keep the champion until it is unpinned, or make a version one and keep it",
		about: `What passes its gate meanwhile awaits a person. One that its gate has refused has to be
promoted before it can be pinned. It needs the role approve.

` + atTheGate,
		examples: []example{
			{"tidemill pin intent/bot-42 --reason 'until the audit'", "the champion"},
			{"tidemill pin intent/bot-42@6", "an older version"},
		},
		make: func() program { return &promotion{action: tidemill.ActionPin} },
	}
}

func unpinCommand() command {
	return command{
		name:    "unpin",
		args:    "MODEL",
		summary: "keep the champion no longer",
		about: `What has passed its gate meanwhile still awaits a person. It needs the role approve.

` + atTheGate,
		examples: []example{{"tidemill unpin intent/bot-42", "its gate decides again"}},
		make:     func() program { return &promotion{action: tidemill.ActionUnpin} },
	}
}

// promotion is a call that wants something of a model.
type promotion struct {
	gate
	action  tidemill.Action
	version bool // it has to be named

	force, dryRun bool
	reason        string
}

func (p *promotion) flags(f *flagSet) {
	if p.action == tidemill.ActionPromote {
		f.yes(&p.force, "force", "also a version that its gate has refused, or has not judged")
	}
	f.text(&p.reason, "reason", "", "TEXT", "why, for whoever looks at it later")
	f.yes(&p.dryRun, "dry-run", "only say what would be done")
	p.gate.flags(f)
}

func (p *promotion) accept(positional []string) error {
	if err := wants(positional, "MODEL"); err != nil {
		return err
	}
	model, which, err := versionArg(positional[0])
	switch {
	case err != nil:
		return err
	case p.version && which == "":
		return usagef("say which version: %s@newest, or one of those that tidemill models show %[1]s lists", model)
	case p.action == tidemill.ActionUnpin && which != "":
		return usagef("what is unpinned is the model: tidemill unpin %s", model)
	}
	return nil
}

func (p *promotion) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	ask, whole, err := p.asked(ctx, g, positional[0])
	if err != nil {
		return err
	}
	got, err := g.Promote(ctx, p.action, ask)
	if err != nil {
		if hint := hintOn(p.action, whole, ask.Version); hint != "" && remote.Status(err) == http.StatusConflict {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
	fmt.Fprintf(s.stdout, "%s %s\n", harmless(got.Model), harmless(got.Done))
	if next := p.next(&got); next != "" {
		fmt.Fprintln(s.stderr, next)
	}
	return nil
}

// asked names the version by its number, and the champion that is seen now: what
// becomes of the model between the two is not overrun.
func (p *promotion) asked(ctx context.Context, g *remote.Gateway, name string) (ask api.PromotionAsked, whole *api.ModelWhole, err error) {
	model, which, err := versionArg(name)
	if err != nil {
		return ask, nil, err
	}
	found, err := g.Model(ctx, model, "")
	if err != nil {
		return ask, nil, err
	}
	whole = &found
	ask = api.PromotionAsked{Model: model, Basis: &whole.Champion, Force: p.force, Reason: p.reason, DryRun: p.dryRun}
	switch {
	case p.action == tidemill.ActionRollback && which == "":
		which = tidemill.WhichPrevious
	case p.action == tidemill.ActionPin && which == "":
		which = tidemill.WhichChampion
	case p.action == tidemill.ActionUnpin:
		return ask, whole, nil
	}
	ask.Version, err = findVersion(whole, which)
	return ask, whole, err
}

// hintOn is what can be done about a refusal.
func hintOn(action tidemill.Action, m *api.ModelWhole, version int) string {
	name, h := harmless(m.Name), m.Find(version)
	switch {
	case version != 0 && version == m.Champion:
		return "nothing needs to be done"
	case m.Pin != nil && action != tidemill.ActionPin:
		return "tidemill unpin " + name + " first"
	case action == tidemill.ActionUnpin:
		return ""
	case h == nil:
		return "tidemill models show " + name + " lists those that are kept"
	case action == tidemill.ActionPin && forceOf(h) != "":
		return fmt.Sprintf("tidemill models show %s@%d says why; tidemill promote %[1]s@%[2]d --force promotes it all the same, and tidemill pin %[1]s keeps it", name, version)
	case action == tidemill.ActionRollback:
		return fmt.Sprintf("tidemill promote %s@%d%s promotes one that never was", name, version, forceOf(h))
	case action == tidemill.ActionPromote && forceOf(h) != "":
		return fmt.Sprintf("tidemill models show %s@%d says why, and --force promotes it all the same", name, version)
	}
	return ""
}

// next is what one may want to do then.
func (p *promotion) next(got *api.PromotionDone) string {
	name := harmless(got.Model)
	switch {
	case p.dryRun:
		return "Next: the same without --dry-run."
	case p.action == tidemill.ActionPromote && got.Before != 0:
		return "Next: tidemill rollback " + name + " takes it back."
	case p.action == tidemill.ActionRollback:
		return fmt.Sprintf("Next: tidemill pin %s keeps it; else the next version that passes takes its place.\n      The champion before is version %d now: a rollback goes back to that.", name, got.Before)
	case p.action == tidemill.ActionPin:
		return "Next: tidemill unpin " + name + " ends it."
	}
	return ""
}
