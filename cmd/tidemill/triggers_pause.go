package main

import (
	"context"
	"fmt"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func triggersPauseCommand() command {
	return command{
		name:    "triggers pause",
		args:    "NAME",
		summary: "let a trigger's events wait",
		about: `They are kept and delivered, in order, once it is resumed. Events that wait for
longer than half of their stream's retention become dead letters.

` + atTheGate,
		examples: []example{{"tidemill triggers pause tell-crm", "while its subscriber is mended"}},
		make:     func() program { return &triggerSwitch{set: (*remote.Gateway).PauseTrigger, paused: true} },
	}
}

func triggersResumeCommand() command {
	return command{
		name:     "triggers resume",
		args:     "NAME",
		summary:  "deliver a paused trigger's events again",
		about:    "What has waited comes first.\n\n" + atTheGate,
		examples: []example{{"tidemill triggers resume tell-crm", "once its subscriber is mended"}},
		make:     func() program { return &triggerSwitch{set: (*remote.Gateway).ResumeTrigger} },
	}
}

// triggerSwitch pauses or resumes.
type triggerSwitch struct {
	gate
	set    func(*remote.Gateway, context.Context, string) (api.TriggerDone, error)
	paused bool
}

func (p *triggerSwitch) accept(positional []string) error { return wants(positional, "NAME") }

func (p *triggerSwitch) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	now, err := p.set(g, ctx, positional[0])
	if err != nil {
		return err
	}
	name := harmless(positional[0])
	switch {
	case p.paused && now.Changed:
		fmt.Fprintf(s.stdout, "%s is paused: its events wait. Next: tidemill triggers resume %s\n", name, name)
	case p.paused:
		fmt.Fprintf(s.stdout, "%s was %s already. Next: tidemill triggers resume %s\n", name, harmless(stateOf(&now.Trigger)), name)
	case now.Changed:
		fmt.Fprintf(s.stdout, "%s is resumed: what has waited comes first. tidemill triggers show %s tells how it goes.\n", name, name)
	default:
		fmt.Fprintf(s.stdout, "%s was not paused.\n", name)
	}
	return nil
}
