package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

func schedulesCommand() command {
	return command{
		name:    "schedules",
		summary: "list the schedules: when they ticked last and will tick next",
		about: `Times are those of each schedule's time zone. LAST and NEXT are scheduled times: a
tick may be sent later, where keys are spread or the keeper was away.

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
	if err != nil { // the gateway knows one that this machine does not
		zone = time.UTC
	}
	return []string{harmless(s.Name), harmless(s.Cron), keysOf(s), onClock(s.Last, zone, "never"), onClock(s.Next, zone, "-"), standing(s)}
}

// keysOf says for whom a schedule ticks.
func keysOf(s *api.Schedule) string {
	switch {
	case s.Each:
		return "each key"
	case s.Keys == 0:
		return "-"
	}
	return strconv.Itoa(s.Keys)
}

// onClock is a time as a clock in a zone shows it.
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

// gateway is the one to ask about what only a gateway tells.
func (r *reach) gateway(ctx context.Context, s *session) (*remote.Gateway, error) {
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
