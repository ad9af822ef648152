package web

import (
	"errors"
	"net/http"

	"tidemill.dev/internal/api"
)

// errFull ends a walk when the page is full.
var errFull = errors.New("the page is full")

// listFiles answers with a page of a commit's files.
func (g *Gateway) listFiles(w http.ResponseWriter, r *request) *api.Problem {
	s, values, p := g.dataQuery(r, "at", "path", "after", "limit")
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostFiles, pageFiles)
	if p != nil {
		return p
	}
	page := api.Files{Files: []api.File{}}
	if page.Commit, p = g.commitAt(r.Context(), s, values.Get("dataset"), values.Get("at")); p != nil {
		return p
	}
	err := s.Walk(r.Context(), page.Commit.Tree, values.Get("path"), values.Get("after"), func(f api.File) error {
		if len(page.Files) == limit {
			page.Next = page.Files[limit-1].Path
			return errFull
		}
		page.Files = append(page.Files, f)
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
		return g.storeFault("list files", err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// diff answers with a page of what differs between two commits.
func (g *Gateway) diff(w http.ResponseWriter, r *request) *api.Problem {
	s, values, p := g.dataQuery(r, "from", "to", "after", "limit")
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostFiles, pageFiles)
	if p != nil {
		return p
	}
	page, dataset, after := api.Diff{Files: []api.Difference{}}, values.Get("dataset"), values.Get("after")
	if page.From, p = g.commitAt(r.Context(), s, dataset, values.Get("from")); p != nil {
		return p
	}
	if page.To, p = g.commitAt(r.Context(), s, dataset, values.Get("to")); p != nil {
		return p
	}
	err := s.Diff(r.Context(), page.From.Tree, page.To.Tree, func(was, is *api.File) error {
		d := api.Difference{Was: was, Is: is}
		if d.Path = pathOf(was, is); after != "" && d.Path <= after {
			return nil
		}
		if len(page.Files) == limit {
			page.Next = page.Files[limit-1].Path
			return errFull
		}
		page.Files = append(page.Files, d)
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
		return g.storeFault("compare two commits", err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

func pathOf(was, is *api.File) string {
	if is != nil {
		return is.Path
	}
	return was.Path
}

const (
	pageCommits = 100
	mostCommits = 1000
)

// listCommits answers with a page of a branch's commits.
func (g *Gateway) listCommits(w http.ResponseWriter, r *request) *api.Problem {
	s, values, p := g.dataQuery(r, "branch", "after", "limit")
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostCommits, pageCommits)
	if p != nil {
		return p
	}
	after, dataset, branch := values.Get("after"), values.Get("dataset"), orElse(values.Get("branch"), mainBranch)
	page, begun := api.Log{Commits: []api.Commit{}}, after == ""
	err := s.Log(r.Context(), dataset, branch, func(c api.Commit) bool {
		switch {
		case !begun: // a commit's number is that of its own branch, which another may have begun as
			begun = c.ID == after
		case len(page.Commits) == limit:
			page.Next = page.Commits[limit-1].ID
			return false
		default:
			page.Commits = append(page.Commits, c)
		}
		return true
	})
	if err != nil {
		return g.storeFault("list the commits of "+branch, err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}
