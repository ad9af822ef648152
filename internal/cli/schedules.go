package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

func schedulesCommand() command {
	return command{
		name:    "schedules",
		lists:   true,
		summary: "list the schedules: when they ticked last and will tick next",
		about: `Times are those of each schedule's time zone. LAST and NEXT are scheduled times: a
tick may be sent later, where keys are spread or the controller was away.

` + whereToAsk,
		examples: []example{
			{"tidemill schedules", "a table"},
			{"tidemill schedules -o json", "for a script"},
		},
		make: func() program { return &scheduleList{output: "text"} },
	}
}

type scheduleList struct {
	reach
	output string
}

func (l *scheduleList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.reach.flags(f)
}

func (l *scheduleList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	return wants(positional)
}

func (l *scheduleList) run(ctx context.Context, s *session, _ []string) error {
	g, err := l.gateway(ctx, s)
	if err != nil {
		return err
	}
	defer g.Close()
	all, err := g.Schedules(ctx)
	if err != nil {
		return err
	}
	if l.output == "json" {
		e := json.NewEncoder(s.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all.Schedules)
	}
	if len(all.Schedules) == 0 {
		fmt.Fprintln(s.stderr, "The config has no schedules; docs/schedules.md shows how to write one.")
		return nil
	}
	return tabulateSchedules(s.stdout, all.Schedules)
}

func tabulateSchedules(w io.Writer, all []api.Schedule) error {
	rows := [][]string{{"NAME", "CRON", "KEYS", "LAST", "NEXT", "STATE"}}
	for i := range all {
		rows = append(rows, scheduleRow(&all[i]))
	}
	return columns(w, rows)
}

func scheduleRow(s *api.Schedule) []string {
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil { // this machine may not have the gateway's time zone
		zone = time.UTC
	}
	return []string{harmless(s.Name), harmless(s.Cron), keysOf(s), onClock(s.Last, zone, "never"), onClock(s.Next, zone, "-"), standing(s)}
}

// keysOf returns the number of keys that a schedule ticks for.
func keysOf(s *api.Schedule) string {
	switch {
	case s.Each:
		return "each key"
	case s.Keys == 0:
		return "-"
	}
	return strconv.Itoa(s.Keys)
}

// onClock formats a time in a time zone.
func onClock(at *time.Time, zone *time.Location, none string) string {
	if at == nil {
		return none
	}
	return at.In(zone).Format("2006-01-02 15:04:05 MST")
}

func standing(s *api.Schedule) string {
	if s.State != api.SchedulePaused || s.PausedSince == nil {
		return harmless(string(s.State))
	}
	since := s.PausedSince.Local().Format("2006-01-02 15:04")
	if s.PausedBy == "" {
		return "paused since " + since
	}
	return fmt.Sprintf("paused by %s since %s", harmless(s.PausedBy), since)
}

const whereToAsk = `It asks the gateway: the one that --url names, else TIDEMILL_URL, else that of a
tidemill up that was started in the same folder.`

// gateway connects to a gateway, for what Kafka alone cannot answer.
func (r *reach) gateway(ctx context.Context, s *session) (*client.Gateway, error) {
	log, err := r.logger(s.stderr, slog.LevelWarn)
	if err != nil {
		return nil, err
	}
	w, err := r.choose(s.getenv)
	if err != nil {
		return nil, err
	}
	if w.url == "" {
		return nil, usagef("only a gateway knows that: name it by --url or %s, and leave --kafka and TIDEMILL_KAFKA out", envURL)
	}
	return r.dial(ctx, s, w, log)
}

func schedulesPauseCommand() command {
	return command{
		name:    "schedules pause",
		args:    "NAME",
		summary: "pause a schedule",
		about: `The schedule's key missed decides about ticks that are missed during the pause: skip,
last or all.

` + whereToAsk,
		examples: []example{{"tidemill schedules pause nightly", "no tick from now on"}},
		make: func() program {
			return &scheduleAct{do: (*client.Gateway).PauseSchedule, done: "paused", already: "was paused already"}
		},
	}
}

func schedulesResumeCommand() command {
	return command{
		name:     "schedules resume",
		args:     "NAME",
		summary:  "have a schedule tick again",
		about:    whereToAsk,
		examples: []example{{"tidemill schedules resume nightly", "and send missed ticks, if the schedule says so"}},
		make: func() program {
			return &scheduleAct{do: (*client.Gateway).ResumeSchedule, done: "resumed", already: "was not paused"}
		},
	}
}

// scheduleAct is a call that pauses or resumes a schedule.
type scheduleAct struct {
	reach
	do            func(*client.Gateway, context.Context, string) (api.ScheduleDone, error)
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
