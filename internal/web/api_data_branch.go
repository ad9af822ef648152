package web

import (
	"errors"
	"fmt"
	"net/http"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

// branch makes a branch that begins with a commit.
func (g *Gateway) branch(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	var asked api.BranchAsked
	if p := g.readAsk(r, &asked); p != nil {
		return p
	}
	switch {
	case asked.Dataset == "":
		return badParameter("dataset", "name one")
	case asked.Branch == "":
		return badParameter("branch", "give the new one a name")
	}
	if p := g.mayTouch(r, access.Operate, asked.Dataset); p != nil {
		return p
	}
	done, p := g.branchAt(r, s, asked)
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// branchAt leaves a branch alone that is there: it may have gone on since. One
// that has not is what was asked for.
func (g *Gateway) branchAt(r *request, s *store.Store, asked api.BranchAsked) (done api.Branched, p *api.Problem) {
	done.Branch = asked.Branch
	from, p := g.commitAt(r.Context(), s, asked.Dataset, asked.From)
	if p != nil {
		return done, p
	}
	head, err := s.Head(r.Context(), asked.Dataset, asked.Branch)
	if errors.Is(err, store.ErrNotFound) {
		done.Changed = true
		if err = s.Branch(r.Context(), asked.Dataset, asked.Branch, from); err == nil {
			head, err = s.Head(r.Context(), asked.Dataset, asked.Branch)
		}
	}
	switch {
	case err != nil:
		return done, g.storeFault("make a branch", err)
	case !done.Changed && (head.Parent != from.ID || head.Number != 1):
		return done, conflict(fmt.Sprintf("branch %q of dataset %q is there, at commit %s: give the new one another name", clip(asked.Branch), clip(asked.Dataset), head.ID))
	}
	done.Commit = head
	return done, nil
}
