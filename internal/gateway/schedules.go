package gateway

import (
	"context"
	"net/http"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/schedule"
)

// scheduleLook holds the state of the schedules.
type scheduleLook struct {
	acts *commands.State
	book *schedule.Book // nil if the times of the last ticks cannot be read
	now  time.Time
}

// listSchedules answers with all schedules of the config.
func (g *Gateway) listSchedules(w http.ResponseWriter, r *request) *api.Problem {
	look, p := g.lookAtSchedules(r.Context())
	if p != nil {
		return p
	}
	all := api.Schedules{Schedules: []api.Schedule{}}
	for _, s := range g.opt.Config().Schedules {
		all.Schedules = append(all.Schedules, look.stateOf(&s))
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// pauseSchedule pauses a schedule.
func (g *Gateway) pauseSchedule(w http.ResponseWriter, r *request) *api.Problem {
	return g.setResting(w, r, true, commands.Author.PauseSchedule)
}

// resumeSchedule ends the pause of a schedule.
func (g *Gateway) resumeSchedule(w http.ResponseWriter, r *request) *api.Problem {
	return g.setResting(w, r, false, commands.Author.ResumeSchedule)
}

func (g *Gateway) setResting(w http.ResponseWriter, r *request, rests bool, act func(commands.Author, string) broker.View) *api.Problem {
	hangUp(w, r) // the request needs no body
	s, ok := g.opt.Config().Schedule(r.value)
	if !ok {
		return g.unknownSchedule(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return forbidden("a schedule is for all keys, and you may operate only on some: use a token for all keys")
	}
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	done := api.ScheduleDone{Changed: f.Now().SchedulePaused(s.Name) != rests}
	if done.Changed {
		v := act(g.commandAuthor(r), s.Name)
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	look, p := g.lookAtSchedules(r.Context())
	if p != nil {
		return p
	}
	done.Schedule = look.stateOf(&s)
	writeJSON(w, http.StatusOK, done)
	return nil
}

func (g *Gateway) lookAtSchedules(ctx context.Context) (*scheduleLook, *api.Problem) {
	f, p := g.commandLog(ctx)
	if p != nil {
		return nil, p
	}
	look := &scheduleLook{acts: f.Now(), now: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	book, err := g.marks.current(ctx)
	if err != nil {
		g.log.Warn("gateway: reading the last ticks failed; the answer has none", "reason", err)
		return look, nil
	}
	look.book = book
	return look, nil
}

// stateOf returns the state of one schedule.
func (l *scheduleLook) stateOf(s *config.Schedule) api.Schedule {
	shown := api.Schedule{Name: s.Name, Cron: s.Cron, TimeZone: s.TimeZone, Missed: string(s.Missed), Keys: len(s.Keys), Each: s.Each,
		SpreadSeconds: s.Spread.Seconds(), State: api.ScheduleActive}
	if l.book != nil {
		if last, ok := l.book.Last(s.Name); ok {
			shown.Last = &last
		}
	}
	if pause, rests := l.acts.SchedulePause(s.Name); rests {
		shown.State, shown.PausedBy, shown.PausedSince = api.SchedulePaused, pause.By, &pause.Since
		return shown
	}
	if next, ok := schedule.Next(s, l.now); ok {
		shown.Next = &next
	}
	return shown
}
