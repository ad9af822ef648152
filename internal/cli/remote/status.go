package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// StatusCommand shows the state of an install.
func StatusCommand() command.Command {
	return command.Command{
		Name:    "status",
		Daily:   true,
		Watched: true,
		Summary: "show on one screen what runs, waits, failed or is behind, and the next commands",
		About: `It shows the state of the install, its runs, models, scorers, triggers and dead letters,
and everything that is paused. Failed runs are those of the last day.`,
		Examples: []command.Example{
			{"tidemill status", "one screen"},
			{"tidemill status --watch", "until Ctrl-C"},
		},
		Make: func() command.Program { return &request{do: showStatus} },
	}
}

func showStatus(ctx context.Context, c *call) error {
	r := statusReport{g: c.g, now: time.Now()}
	for _, part := range []struct {
		name   string
		gather func(context.Context, *section) error
	}{
		{"install", r.install}, {"runs", r.runs}, {"models", r.models}, {"fresh in", r.freshness}, {"scorers", r.scorers}, {"triggers", r.triggers},
		{"lag", r.lag}, {"dead letters", r.letters}, {"rollouts", r.rollouts}, {"paused", r.paused},
	} {
		one := section{name: part.name}
		if err := part.gather(ctx, &one); err != nil {
			if ctx.Err() != nil || part.name == "install" {
				return err
			}
			one.say("%v", err) // such as a right that the caller lacks
		}
		r.sections = append(r.sections, one)
	}
	return r.print(c.Stdout)
}

// statusReport is the content of one screen.
type statusReport struct {
	g        *client.Gateway
	now      time.Time
	sections []section
	next     []string // suggested commands, the most urgent first
}

// section has a summary, and lines with details.
type section struct {
	name, text string
	lines      []string
}

// say adds a part to the summary.
func (s *section) say(format string, args ...any) {
	if s.text != "" {
		s.text += ", "
	}
	s.text += show.Harmless(fmt.Sprintf(format, args...))
}

// line adds a line about something that a person may have to look at.
func (s *section) line(format string, args ...any) {
	s.lines = append(s.lines, show.Harmless(fmt.Sprintf(format, args...)))
}

func (r *statusReport) suggest(format string, args ...any) {
	r.next = append(r.next, show.Harmless(fmt.Sprintf(format, args...)))
}

const (
	statusLines = 5 // lines of a section
	statusNext  = 4 // suggested commands
	statusPage  = 1000
)

func (r *statusReport) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range r.sections {
		if s.text == "" && len(s.lines) == 0 {
			continue
		}
		fmt.Fprintf(t, "%s\t%s\n", s.name, s.text)
		for _, line := range s.lines[:min(len(s.lines), statusLines)] {
			fmt.Fprintf(t, "\t  %s\n", show.Cut(line, 140))
		}
		if more := len(s.lines) - statusLines; more > 0 {
			fmt.Fprintf(t, "\t  and %s more\n", show.Thousands(int64(more)))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.next) == 0 {
		_, err := fmt.Fprintln(w, "\nNothing needs you.")
		return err
	}
	_, err := fmt.Fprintf(w, "\nNext: %s\n", strings.Join(r.next[:min(len(r.next), statusNext)], "\n      "))
	return err
}

func (r *statusReport) install(ctx context.Context, s *section) error {
	ready, err := r.g.Ready(ctx)
	if err != nil {
		return err
	}
	s.say("%s", map[api.Status]string{api.OK: "ready", api.Degraded: "degraded"}[ready.Status])
	if ready.Status == api.Failed {
		s.text = "not ready"
	}
	for _, c := range ready.Checks {
		if c.Status != api.OK {
			s.line("%s: %s", c.Name, c.Detail)
		}
	}
	return nil
}

func (r *statusReport) runs(ctx context.Context, s *section) error {
	live, err := r.runsOf(ctx, s, "running", client.RunQuery{States: []tidemill.RunState{tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting}})
	if err != nil {
		return err
	}
	for i := range live {
		s.line("%s  %s %s  %s  %s", show.ShortID(live[i].ID), live[i].Recipe, live[i].Key, stateOfRun(&live[i]), noteOf(&live[i]))
	}
	waiting, err := r.runsOf(ctx, s, "waiting", client.RunQuery{States: []tidemill.RunState{tidemill.RunWaiting}})
	if err != nil {
		return err
	}
	reasons := map[string]int{}
	for i := range waiting {
		reasons[cmp.Or(noteOf(&waiting[i]), "waits to be started")]++
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		s.line("%s: %s", show.Count(reasons[reason], "run"), reason)
	}
	failed, err := r.runsOf(ctx, s, "failed", client.RunQuery{States: []tidemill.RunState{tidemill.RunFailed}, Since: "-24h"})
	for i := range failed {
		s.line("%s  %s %s  failed %s ago: %s", show.ShortID(failed[i].ID), failed[i].Recipe, failed[i].Key, ago(failed[i].End), noteOf(&failed[i]))
	}
	if len(failed) > 0 {
		r.suggest("%s", whyFailed(&failed[0]))
	}
	if s.text == "" {
		s.say("none is running or waiting")
	}
	return err
}

// runsOf returns runs, and adds their number to the summary.
func (r *statusReport) runsOf(ctx context.Context, s *section, what string, q client.RunQuery) ([]api.RunShown, error) {
	q.Limit = statusPage
	page, err := r.g.Runs(ctx, q)
	switch n := len(page.Runs); {
	case err != nil || n == 0:
	case page.Next != "":
		s.say("more than %s %s", show.Thousands(int64(n)), what)
	default:
		s.say("%s %s", show.Thousands(int64(n)), what)
	}
	return page.Runs, err
}

func (r *statusReport) models(ctx context.Context, s *section) error {
	champions, awaiting, unserved, trials, drifting := 0, 0, 0, 0, 0
	waits := map[string]int{} // number of versions that wait for a person, by reason
	var refused []string
	q := client.ModelQuery{Limit: statusPage}
	for {
		page, err := r.g.Models(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Models {
			m := &page.Models[i]
			if m.Champion != 0 {
				champions++
			}
			if m.Unserved != nil {
				unserved++
				s.line("%s@%d is the champion%s: %s", m.Name, m.Champion, servingText(m.Unserved), m.Unserved.Error)
				r.suggest("tidemill models show %s", m.Name)
			}
			if len(m.Drifts) > 0 {
				drifting++
			}
			switch m.State {
			case tidemill.VersionTrial:
				trials++
			case tidemill.VersionAwaiting:
				awaiting++
				if m.Hold != "" {
					waits[m.Hold]++
				}
				r.suggest("tidemill models show %s@%d", m.Name, m.Newest) // it says whether and how to promote it
			case tidemill.VersionRefused:
				refused = append(refused, tidemill.VersionName(m.Name, m.Newest))
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(waits)) {
		s.line("%s: %s", show.Count(waits[reason], "waiting version"), reason)
	}
	s.say("%s", show.Count(champions, "champion"))
	for _, part := range []struct {
		n    int
		text string
	}{{len(refused), "of the newest versions refused"}, {awaiting, "waiting for a person"}, {unserved, "not served"}, {trials, "on trial"}, {drifting, "drifting"}} {
		if part.n > 0 {
			s.say("%s %s", show.Thousands(int64(part.n)), part.text)
		}
	}
	if drifting > 0 {
		r.suggest("tidemill drift")
	}
	r.refusals(ctx, s, refused)
	return nil
}

// refusals adds a line for some of the refused versions, with the reason.
func (r *statusReport) refusals(ctx context.Context, s *section, refused []string) {
	for i, name := range refused {
		if len(s.lines) >= statusLines {
			s.lines = append(s.lines, refused[i:]...) // only counted
			break
		}
		look, err := lookAtVersion(ctx, r.g, name)
		if err != nil { // such as a version that was removed meanwhile
			s.line("%s: %v", name, err)
			continue
		}
		s.line("%s %s", name, shortSentence(look.version))
	}
	if len(refused) > 0 {
		r.suggest("tidemill models show %s", refused[0])
	}
}

// freshness shows the median time from an event to the first score of the version that it led to.
func (r *statusReport) freshness(ctx context.Context, s *section) error {
	all, err := r.g.Freshness(ctx)
	sayFreshness(s, all)
	return err
}

func sayFreshness(s *section, all api.Freshness) {
	took := func(seconds float64) time.Duration {
		return time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)
	}
	for _, of := range all.Recipes {
		if total := of.Stages["total"]; total != nil {
			s.say("%s %s (p99 %s)", of.Recipe, took(total.P50), took(total.P99))
		}
	}
}

func (r *statusReport) scorers(ctx context.Context, s *section) error {
	all, err := r.g.Scorers(ctx)
	for i := range all.Scorers {
		c := &all.Scorers[i]
		rate, lag := 0.0, int64(0)
		if c.Numbers != nil {
			rate = c.Numbers.Rate
		}
		if c.Lag != nil {
			lag = *c.Lag
		}
		s.say("%s %.0f/s", c.Name, rate)
		switch {
		case lag > 0 && c.Processes != nil && *c.Processes == 0:
			s.line("%s: %s behind, and no process scores", c.Name, show.Count(int(lag), "event"))
			r.suggest("tidemill scorers %s", c.Name)
		case lag > 0:
			s.line("%s: %s behind", c.Name, show.Count(int(lag), "event"))
		}
		if c.LastErrorAt != nil && r.now.Sub(*c.LastErrorAt) < time.Hour {
			s.line("%s, %s ago: %s", c.Name, ago(*c.LastErrorAt), c.LastError)
		}
	}
	return err
}

func (r *statusReport) triggers(ctx context.Context, s *section) error {
	all, err := r.g.Triggers(ctx)
	waiting := int64(0)
	for i := range all.Triggers {
		t := &all.Triggers[i]
		if t.Numbers != nil && t.Numbers.Parked > 0 {
			waiting += t.Numbers.Parked
			s.line("%s: %s%s", t.Name, show.Count(int(t.Numbers.Parked), "waiting event"), strings.TrimSuffix(": "+cmp.Or(t.Waits, t.LastError), ": "))
			r.suggest("tidemill triggers show %s", t.Name)
		}
	}
	if len(all.Triggers) > 0 {
		s.say("%s", show.Count(len(all.Triggers), "trigger"))
		s.say("%s", show.Count(int(waiting), "waiting event"))
	}
	if all.Dispatchers != nil && *all.Dispatchers == 0 && len(all.Triggers) > 0 {
		s.say("no dispatcher runs")
	}
	return err
}

// lag shows how many events the dispatchers and observers have yet to read.
func (r *statusReport) lag(ctx context.Context, s *section) error {
	all, err := r.g.Streams(ctx)
	sayLag(s, all)
	return err
}

func sayLag(s *section, streams []api.Stream) {
	for i := range streams {
		for _, g := range streams[i].Groups {
			if g.Lag > 0 && !strings.HasPrefix(g.Group, "scorer.") {
				s.say("%s of %s for %s", show.Count(int(g.Lag), "event"), streams[i].Name, g.Group)
			}
		}
	}
}

func (r *statusReport) letters(ctx context.Context, s *section) error {
	page, err := r.g.DeadLetters(ctx, api.LetterSelection{}, statusPage, "")
	if err != nil || page.Total == 0 {
		return err
	}
	s.say("%s open", show.Thousands(int64(page.Total)))
	type group struct{ of, reason string }
	sizes := map[group]int{}
	for i := range page.DeadLetters {
		l := &page.DeadLetters[i]
		sizes[group{failedDelivery(l), l.Reason}]++
	}
	groups := slices.SortedFunc(maps.Keys(sizes), func(a, b group) int {
		return cmp.Or(-cmp.Compare(sizes[a], sizes[b]), cmp.Compare(a.of, b.of), cmp.Compare(a.reason, b.reason))
	})
	if n := len(page.DeadLetters); n < page.Total {
		s.line("of the newest %s:", show.Thousands(int64(n)))
	}
	for _, g := range groups {
		s.line("%s %s: %s", show.Thousands(int64(sizes[g])), cmp.Or(g.of, "without a trigger"), g.reason)
	}
	r.suggest("tidemill dl")
	return nil
}

func (r *statusReport) rollouts(ctx context.Context, s *section) error {
	all, err := r.g.Rollouts(ctx)
	r.sayRollouts(s, all.Rollouts)
	return err
}

// sayRollouts adds the rollouts that are open. One that has stopped waits for a person.
func (r *statusReport) sayRollouts(s *section, all []api.Rollout) {
	for i := range all {
		one := &all[i]
		switch one.State {
		case api.RolloutNone:
		case api.RolloutStopped:
			s.say("%s stopped", one.Rollout)
			s.line("%s waits for a person: %s", one.Rollout, one.Reason)
			r.suggest("tidemill rollouts show %s", one.Recipe)
		default:
			s.say("%s %s at %s of the keys", one.Rollout, one.State, percentOf(one.Share))
		}
	}
}

// paused collects what people have paused. A gateway without runs has no recipes and no pools, and its triggers may be
// paused.
func (r *statusReport) paused(ctx context.Context, s *section) error {
	say := func(kind, name, by string, since *time.Time) {
		text := kind + " " + name + " by " + orSomebody(by)
		if since != nil {
			text += ", " + ago(*since) + " ago"
		}
		s.line("%s", text)
		r.suggest("tidemill %ss resume %s", kind, name)
	}
	defer func() {
		if n := len(s.lines); n > 0 {
			s.say("%s", show.Thousands(int64(n)))
		}
	}()
	recipes, noRecipes := r.g.Recipes(ctx)
	for _, one := range recipes.Recipes {
		if one.PausedSince != nil {
			say("recipe", one.Name, one.PausedBy, one.PausedSince)
		}
	}
	pools, noPools := r.g.Pools(ctx)
	for _, one := range pools.Pools {
		if one.PausedSince != nil {
			say("pool", one.Name, one.PausedBy, one.PausedSince)
		}
	}
	triggers, noTriggers := r.g.Triggers(ctx)
	for _, one := range triggers.Triggers {
		if one.State == api.TriggerPaused {
			say("trigger", one.Name, one.PausedBy, one.PausedSince)
		}
	}
	schedules, noSchedules := r.g.Schedules(ctx)
	for _, one := range schedules.Schedules {
		if one.State == api.SchedulePaused {
			say("schedule", one.Name, one.PausedBy, one.PausedSince)
		}
	}
	failed := []error{noRecipes, noPools, noTriggers, noSchedules, r.frozen(ctx, s)}
	return errors.Join(slices.DeleteFunc(failed, func(err error) bool { return client.Status(err) == http.StatusNotImplemented })...)
}

// frozen adds the frozen promotions.
func (r *statusReport) frozen(ctx context.Context, s *section) error {
	all, err := r.g.Promotions(ctx)
	r.sayFrozen(s, all.Frozen)
	return err
}

func (r *statusReport) sayFrozen(s *section, all []api.Freeze) {
	for _, f := range all {
		s.line("promotions of %s by %s, %s ago", frozenName(f.Recipe), orSomebody(f.By), ago(f.Since))
		thaw := "tidemill promotions thaw"
		if f.Recipe != tidemill.AllRecipes {
			thaw += " --recipe " + f.Recipe
		}
		r.suggest("%s", thaw)
	}
}
