package web

import (
	"fmt"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/triggers/match"
)

// readSelection reads what is to be done with which runs; usual are the states
// that are meant where none are given.
func (g *Gateway) readSelection(r *request, usual ...tidemill.RunState) (ask api.RunsSelected, p *api.Problem) {
	if p := g.readAsk(r, &ask); p != nil {
		return ask, p
	}
	if p := g.runsThere(); p != nil {
		return ask, p
	}
	selects := ask.Recipe+ask.Key+ask.Where != "" || len(ask.States) > 0 || ask.Since != nil
	switch {
	case len(ask.Runs) > 0 && (selects || ask.All):
		return ask, badParameter("runs", "give runs by their ids, or what selects them, and not both")
	case len(ask.Runs) == 0 && selects == ask.All:
		return ask, badParameter("runs", "give ids, or what selects runs, or all: true and nothing else")
	case len(ask.Runs) > mostOnOne:
		return ask, badParameter("runs", fmt.Sprintf("there are %d; give %d at once", len(ask.Runs), mostOnOne))
	case len(ask.Reason) > mostReason:
		return ask, badParameter("reason", fmt.Sprintf("it has %d bytes, and every run repeats it: say it in %d", len(ask.Reason), mostReason))
	}
	if p := checkStates("states", ask.States); p != nil {
		return ask, p
	}
	if len(ask.States) == 0 {
		ask.States = usual
	}
	return ask, badRate(ask.Rate)
}

// one is what becomes of the nth run that is meant.
type one func(run *tidemill.Run, nth int) (api.RunDone, error)

// do does the same to all runs that are meant, page by page.
func (b *bulk) do(ask *api.RunsSelected, what one) (done api.RunsDone, p *api.Problem) {
	done.Runs = []api.RunDone{}
	if len(ask.Runs) > 0 {
		return done, b.doNamed(ask.Runs, what, &done)
	}
	where, p := runFilter(ask.Where)
	if p != nil {
		return done, p
	}
	q := ledger.Query{States: ask.States, Recipe: ask.Recipe, Key: ask.Key, After: ask.After, Limit: runsAtATime}
	if ask.Since != nil {
		q.Since = *ask.Since
	}
	for {
		page, err := b.g.opt.Ledger.Runs(b.ctx, q)
		if err != nil {
			return done, b.g.unled(b.r.Context(), err)
		}
		meant := slices.DeleteFunc(page.Runs, func(r tidemill.Run) bool { return !b.means(where, &r) })
		if p := b.doEach(meant, ask.First+len(done.Runs), what, &done); p != nil {
			return done, p
		}
		if q.After = page.Next; page.Next == "" || b.enough(len(done.Runs)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func (b *bulk) doEach(all []tidemill.Run, first int, what one, done *api.RunsDone) *api.Problem {
	lines := make([]api.RunDone, len(all))
	err := each(len(all), func(i int) (err error) {
		lines[i], err = what(&all[i], first+i)
		return err
	})
	if err != nil {
		return b.g.unasked(b.r.Context(), "", err, b.began)
	}
	done.Runs = append(done.Runs, lines...)
	return nil
}

func (b *bulk) means(where *match.Filter, r *tidemill.Run) bool {
	return b.r.caller.MayTouch(access.Operate, r.Key) && wanted(where, r.Recipe, r.Key,
		broker.Attribute{Name: tidemill.AttrRun, Value: r.ID}, broker.Attribute{Name: "state", Value: string(r.State)},
		broker.Attribute{Name: "reason", Value: strings.ToValidUTF8(r.Reason, "")})
}

// doNamed does it to the runs that somebody names.
func (b *bulk) doNamed(ids []string, what one, done *api.RunsDone) *api.Problem {
	var all []tidemill.Run
	for _, id := range unique(ids) {
		run, p := b.g.findRun(b.ctx, b.r, access.Operate, id)
		switch {
		case p == nil:
			all = append(all, *run)
		case p.Status/100 == 4:
			done.Runs = append(done.Runs, api.RunDone{Run: clip(id), Done: p.Detail, Refused: true})
		default:
			return p
		}
	}
	return b.doEach(all, 0, what, done)
}
