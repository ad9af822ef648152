package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
	"tidemill.dev/internal/tail"
)

const mostLookedThrough = 20 // pages of the ledger, for one of those that a caller may see

func runParameters() []string { return []string{"after", "key", "limit", "recipe", "since", "state"} }

// listRuns answers with runs, newest first.
func (g *Gateway) listRuns(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.query(runParameters())
	if p != nil {
		return p
	}
	q, p := runQuery(values, time.Now())
	if p != nil {
		return p
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	page, err := g.runsSeenBy(ctx, r.caller, q)
	if err != nil {
		return g.unled(r.Context(), err)
	}
	shown, p := g.showRuns(ctx, page.Runs)
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, api.Runs{Runs: shown, Next: page.Next})
	return nil
}

// runsThere is a problem where there are no runs.
func (g *Gateway) runsThere() *api.Problem {
	if g.opt.Runs == nil || g.opt.Ledger == nil {
		return noRuns()
	}
	return nil
}

// runQuery reads what is looked for.
func runQuery(values url.Values, now time.Time) (q ledger.Query, p *api.Problem) {
	q = ledger.Query{Recipe: values.Get("recipe"), Key: values.Get("key"), After: values.Get("after"), Limit: usualPage}
	if text := values.Get("state"); text != "" {
		for name := range strings.SplitSeq(text, ",") {
			q.States = append(q.States, tidemill.RunState(name))
		}
	}
	if p = checkStates("state", q.States); p != nil {
		return q, p
	}
	if since := values.Get("since"); since != "" {
		at, err := tail.ParseTime(since, now)
		if err != nil {
			return q, badParameter("since", err.Error()+"; in an address + is %2B")
		}
		q.Since = at
	}
	if limit := values.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > mostOnOne {
			return q, badParameter("limit", fmt.Sprintf("%q is not a number of runs; give 1 to %d, and after for more", clip(limit), mostOnOne))
		}
		q.Limit = n
	}
	return q, nil
}

// runsSeenBy is a page of those that a caller may see. It may be short where
// others lie between them; its Next tells whether it is the last.
func (g *Gateway) runsSeenBy(ctx context.Context, caller *access.Caller, q ledger.Query) (page ledger.Page, err error) {
	all := caller.AllKeys(access.Read)
	for range mostLookedThrough {
		if page, err = g.opt.Ledger.Runs(ctx, q); err != nil || all {
			return page, err
		}
		seen := page.Runs[:0]
		for i := range page.Runs {
			if caller.MayTouch(access.Read, page.Runs[i].Key) {
				seen = append(seen, page.Runs[i])
			}
		}
		if page.Runs = seen; len(seen) > 0 || page.Next == "" {
			return page, nil
		}
		q.After = page.Next
	}
	return page, nil
}

func checkStates(name string, states []tidemill.RunState) *api.Problem {
	for _, s := range states {
		switch s {
		case tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling, tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled:
		default:
			return badParameter(name, fmt.Sprintf("%q is no state of a run; there are waiting, running, resting, settling, succeeded, failed and cancelled", clip(string(s))))
		}
	}
	return nil
}
