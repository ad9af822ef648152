package main

import (
	"context"
	"fmt"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func schedulesPauseCommand() command {
	return command{
		name:    "schedules pause",
		args:    "NAME",
		summary: "have a schedule not tick until it is resumed",
		about: `What becomes of the ticks that are missed meanwhile, the schedule's missed says when
it is resumed: skip, last or all.

` + whereToAsk,
		examples: []example{{"tidemill schedules pause nightly", "no tick from now on"}},
		make: func() program {
			return &scheduleAct{do: (*remote.Gateway).PauseSchedule, done: "paused", already: "was paused already"}
		},
	}
}

func schedulesResumeCommand() command {
	return command{
		name:     "schedules resume",
		args:     "NAME",
		summary:  "have a schedule tick again",
		about:    whereToAsk,
		examples: []example{{"tidemill schedules resume nightly", "and what was missed, if it wants that"}},
		make: func() program {
			return &scheduleAct{do: (*remote.Gateway).ResumeSchedule, done: "resumed", already: "was not paused"}
		},
	}
}

// scheduleAct is a call of either.
type scheduleAct struct {
	reach
	do            func(*remote.Gateway, context.Context, string) (api.ScheduleDone, error)
	done, already string
}

func (a *scheduleAct) flags(f *flagSet) { a.reach.flags(f) }

func (a *scheduleAct) accept(positional []string) error { return wants(positional, "NAME") }

func (a *scheduleAct) run(ctx context.Context, s *session, positional []string) error {
	g, err := a.gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	done, err := a.do(g, ctx, positional[0])
	if err != nil {
		return err
	}
	if !done.Changed {
		fmt.Fprintf(s.stdout, "%s %s\n", harmless(done.Schedule.Name), a.already)
		return nil
	}
	fmt.Fprintf(s.stdout, "%s %s\n", a.done, harmless(done.Schedule.Name))
	return nil
}
