package web

import (
	"fmt"
	"time"

	"tidemill.dev"
)

// waits is what a run waits for, in words; empty if for nothing. That another of
// its key has to end first, only its making tells.
func (l *runLook) waits(r *tidemill.Run) string {
	switch r.State {
	case tidemill.RunSettling:
		return "for what it made to be put on its dataset"
	case tidemill.RunRunning:
		return l.waitsToEnd(r)
	case tidemill.RunWaiting, tidemill.RunResting:
		if why := l.keeps(r); why != "" {
			return why
		}
		return l.waitsForRoom(r)
	}
	return ""
}

func (l *runLook) waitsToEnd(r *tidemill.Run) string {
	if r.Cancel == nil {
		return ""
	}
	return "for its command to end: cancelled" + by(r.Cancel.By)
}

// keeps is why a run may not begin yet, whatever room there is.
func (l *runLook) keeps(r *tidemill.Run) string {
	if _, known := l.config.Recipe(r.Recipe); !known {
		return "recipe " + r.Recipe + " is not in the config any more"
	}
	if pause, rests := l.acts.RecipePause(r.Recipe); rests {
		return l.paused("recipe "+r.Recipe, pause)
	}
	if r.Due.After(l.now) {
		return "for its time (" + l.clock(r.Due) + ")"
	}
	return ""
}

func (l *runLook) waitsForRoom(r *tidemill.Run) string {
	recipe, _ := l.config.Recipe(r.Recipe)
	name := recipe.Run.Pool // as it is now, also of one that has begun elsewhere
	slots, known := l.slots[name]
	if !known {
		return "pool " + name + " is not in the config any more"
	}
	if pause, rests := l.acts.PoolPause(name); rests {
		return l.paused("pool "+name, pause)
	}
	switch n := l.busy.Pools[name]; {
	case recipe.MaxRunning > 0 && l.busy.Recipes[r.Recipe] >= recipe.MaxRunning:
		return fmt.Sprintf("maxRunning %d of recipe %s is reached", recipe.MaxRunning, r.Recipe)
	case slots > 0 && n >= slots:
		return fmt.Sprintf("for a slot of pool %s (%d of %d in use)", name, n, slots)
	}
	return "to be started"
}

func (l *runLook) paused(what string, p tidemill.Pause) string {
	return what + " is paused" + by(p.By) + " since " + l.clock(p.Since)
}

func by(name string) string {
	if name == "" {
		return ""
	}
	return " by " + name
}

// clock is a time of this day, or of another.
func (l *runLook) clock(at time.Time) string {
	at, now := at.UTC(), l.now.UTC()
	if at.Year() == now.Year() && at.YearDay() == now.YearDay() {
		return at.Format("15:04:05") + " UTC"
	}
	return at.Format("2006-01-02 15:04:05") + " UTC"
}
