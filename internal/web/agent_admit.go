package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/ledger"
)

// bearer is the attempt that a request speaks for.
type bearer struct {
	name   string
	number int
	run    *tidemill.Run // as the ledger has it, or had it a moment ago; not to be changed
	lately bool          // a moment ago
}

// attemptOf finds an attempt of a run by its number.
func attemptOf(run *tidemill.Run, number int) (*tidemill.Attempt, bool) {
	for i := range run.Attempts {
		if run.Attempts[i].Number == number {
			return &run.Attempts[i], true
		}
	}
	return nil, false
}

// isUnderWay tells whether an attempt is the one that counts.
func isUnderWay(run *tidemill.Run, number int) bool {
	a := run.Attempt()
	return a != nil && a.Number == number
}

// admitAttempt lets an attempt in by its token, which is good for as long as the
// ledger names the attempt: whether it is still the one under way is told from
// the ledger's word, and so is to be as fresh as the route asks for.
//
// At a door without tokens of ours this one is asked for all the same: whoever
// reaches the door may read and publish everything, but not end somebody's run
// in another's name by a slip.
func (g *Gateway) admitAttempt(w http.ResponseWriter, r *request, needed access.Role) *api.Problem {
	if g.opt.Access == nil {
		if p := g.admitOpen(r); p != nil {
			return p
		}
		r.caller = nil
	}
	token, p := g.attemptToken(w, r)
	if p != nil {
		return p
	}
	b, p := g.bearerOf(r.Context(), r.value, needed)
	if p != nil {
		return p
	}
	a, known := &tidemill.Attempt{}, false
	if b.run != nil {
		a, known = attemptOf(b.run, b.number)
	}
	if !known || !g.opt.Tokens.Counts(token, b.run.ID, *a) {
		g.metrics.refused.token.Inc()
		w.Header().Set("WWW-Authenticate", challenge+`, error="invalid_token"`)
		return unauthenticated("the token is not that of attempt " + clip(r.value) + "; only the agent that was launched for it may ask here")
	}
	r.attempt = b
	switch {
	case needed == ofAttemptForever:
	case !isUnderWay(b.run, b.number):
		return g.superseded(b)
	case !b.lately:
		g.attempts.keep(b.name, b.run, time.Now())
	}
	return nil
}

// attemptToken is what the request bears.
func (g *Gateway) attemptToken(w http.ResponseWriter, r *request) (string, *api.Problem) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") && token != "" {
		return strings.TrimSpace(token), nil
	}
	g.metrics.refused.token.Inc()
	w.Header().Set("WWW-Authenticate", challenge)
	return "", unauthenticated("this door takes the token of an attempt, as Authorization: Bearer …")
}

// bearerOf asks who the path names. Its run is nil where the ledger knows none:
// the answer is then the same as to a wrong token, so that nobody learns here
// what runs there are.
func (g *Gateway) bearerOf(ctx context.Context, name string, needed access.Role) (bearer, *api.Problem) {
	if g.opt.Ledger == nil || g.opt.Tokens == nil || g.opt.Store == nil || g.opt.Runs == nil {
		return bearer{}, noRuns()
	}
	id, number, ok := tidemill.CutAttemptName(name)
	b := bearer{name: name, number: number}
	if !ok {
		return b, nil
	}
	if needed == ofAttemptLately {
		if b.run = g.attempts.lately(name, time.Now()); b.run != nil {
			b.lately = true
			return b, nil
		}
	}
	var p *api.Problem
	b.run, p = g.runOf(ctx, id)
	return b, p
}

// runOf asks the ledger for a run; nil is one that it does not name.
func (g *Gateway) runOf(ctx context.Context, id string) (*tidemill.Run, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	run, err := g.opt.Ledger.Run(ctx, id)
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return nil, nil
	case err != nil:
		return nil, g.unled(ctx, err)
	}
	return run, nil
}

// superseded is the problem of an attempt that counts no more. What is
// remembered of it is forgotten, so that the next who comes by its name costs a
// question to the ledger and not the memory.
func (g *Gateway) superseded(b bearer) *api.Problem {
	g.attempts.forget(b.name)
	g.metrics.refused.superseded.Inc()
	return supersededBy(b)
}
