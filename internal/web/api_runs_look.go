package web

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
)

// runLook is all that is known of what runs may wait for.
type runLook struct {
	now    time.Time
	config *config.Config
	acts   *tidemill.Acts
	slots  map[string]int // that each pool of the config has; 0 is no bound
	busy   ledger.Busy
}

func (g *Gateway) lookAtRuns(ctx context.Context) (*runLook, *api.Problem) {
	f, p := g.asked(ctx)
	if p != nil {
		return nil, p
	}
	l := &runLook{now: time.Now(), config: g.opt.Config(), acts: f.Now(), slots: map[string]int{}}
	for _, pool := range l.config.Pools {
		l.slots[pool.Name] = g.slotsOf(pool)
	}
	busy, err := g.opt.Ledger.Busy(ctx)
	if err != nil {
		return nil, g.unled(ctx, err)
	}
	l.busy = busy
	return l, nil
}

func (g *Gateway) slotsOf(pool config.Pool) int {
	if g.opt.Slots == nil {
		return pool.Slots
	}
	return g.opt.Slots(pool)
}

// showRuns has of each run also what it has told last and what it waits for.
func (g *Gateway) showRuns(ctx context.Context, all []tidemill.Run) ([]api.RunShown, *api.Problem) {
	shown := make([]api.RunShown, len(all))
	var live []string
	idle := false
	for i := range all {
		shown[i].Run = slim(all[i])
		idle = idle || !all[i].State.Ended()
		if s := all[i].State; s == tidemill.RunRunning || s == tidemill.RunResting {
			live = append(live, all[i].ID)
		}
	}
	if err := g.addProgress(ctx, shown, live); err != nil {
		return nil, g.unled(ctx, err)
	}
	if !idle {
		return shown, nil
	}
	look, p := g.lookAtRuns(ctx)
	if p != nil {
		return nil, p
	}
	for i := range shown {
		if err := g.addWaits(ctx, look, &shown[i]); err != nil {
			return nil, g.unled(ctx, err)
		}
	}
	return shown, nil
}

// slim leaves out what only one who looks at a single run wants, and gets in
// another form.
func slim(r tidemill.Run) tidemill.Run {
	r.Event, r.Plan, r.Asked = nil, nil, r.Asked[max(0, len(r.Asked)-1):]
	return r
}

func (g *Gateway) addProgress(ctx context.Context, shown []api.RunShown, live []string) error {
	if len(live) == 0 {
		return nil
	}
	told, err := g.opt.Ledger.Told(ctx, live)
	if err != nil {
		return err
	}
	for i := range shown {
		text, has := told[shown[i].ID]
		if !has {
			continue
		}
		var p api.Progress
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("read how far run %s is: %w", shown[i].ID, err)
		}
		shown[i].Progress = &p
	}
	return nil
}

// addWaits asks the ledger which run is before one that waits only where nothing
// else keeps that from beginning.
func (g *Gateway) addWaits(ctx context.Context, l *runLook, shown *api.RunShown) error {
	shown.Waits = l.waits(&shown.Run)
	if shown.State != tidemill.RunWaiting || l.keeps(&shown.Run) != "" {
		return nil
	}
	m, err := g.opt.Ledger.Making(ctx, shown.Recipe, shown.Key)
	if err != nil {
		return err
	}
	if m.Live != nil && m.Live.ID != shown.ID {
		shown.Waits = "for run " + m.Live.ID + " to end"
	}
	return nil
}
