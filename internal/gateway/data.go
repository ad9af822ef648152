package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
)

const (
	mainBranch = "main"
	pageFiles  = 1000   // of a page, unless it is asked for otherwise
	mostFiles  = 10_000 // of any page
)

// ownership is which keys datasets belong to, by the config that applied when it
// was asked last.
type ownership struct {
	config *config.Config
	owners *config.Owners
}

// keysOf are the keys that a dataset belongs to: bot-42 of bots/bot-42.
func (g *Gateway) keysOf(dataset string) []string {
	c, is := g.opt.Config(), g.ownership.Load()
	if is == nil || is.config != c {
		is = &ownership{c, config.OwnersOf(c)}
		g.ownership.Store(is)
	}
	return is.owners.Of(dataset)
}

// touches reports whether a caller has a role for a dataset: for each key that it
// belongs to, since what is done to it is done to all of them.
func (g *Gateway) touches(caller *access.Caller, role access.Role, dataset string) bool {
	return caller.AllKeys(role) || !slices.ContainsFunc(g.keysOf(dataset), func(key string) bool { return !caller.MayTouch(role, key) })
}

// mayTouch refuses a dataset whose keys are not among the caller's.
func (g *Gateway) mayTouch(r *request, role access.Role, dataset string) *api.Problem {
	if g.touches(r.caller, role, dataset) {
		return nil
	}
	keys := g.keysOf(dataset)
	if len(keys) > 1 {
		return forbidden(fmt.Sprintf("dataset %q belongs to the keys %q, by what recipes read and write, of which you may %s not all: have them added where your token is listed", clip(dataset), keys, role))
	}
	return forbidden(fmt.Sprintf("dataset %q belongs to the key %q, which is not among those that you may %s: have it added where your token is listed",
		clip(dataset), clip(keys[0]), role))
}

// dataQuery reads the parameters of a request about one dataset.
func (g *Gateway) dataQuery(r *request, known ...string) (*store.Store, url.Values, *api.Problem) {
	s, p := g.objects()
	if p != nil {
		return nil, nil, p
	}
	values, p := r.query(append([]string{"dataset"}, known...))
	if p != nil {
		return nil, nil, p
	}
	if values.Get("dataset") == "" {
		return nil, nil, badParameter("dataset", "name one; GET /api/v1/data/datasets lists them")
	}
	return s, values, g.mayTouch(r, access.Read, values.Get("dataset"))
}

// commitAt is the head of a branch, or a commit by its id or the beginning of it.
// Empty is the head of main.
func (g *Gateway) commitAt(ctx context.Context, s *store.Store, dataset, at string) (api.Commit, *api.Problem) {
	branch := at
	if at == "" {
		branch = mainBranch
	}
	c, err := s.Head(ctx, dataset, branch)
	if errors.Is(err, store.ErrNotFound) && at != "" {
		c, err = s.FindCommit(ctx, dataset, at)
	}
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, store.ErrNotFound):
		return c, unknownData(fmt.Sprintf("dataset %q has no branch %q and no commit whose id begins so; GET /api/v1/data/datasets lists datasets and branches", clip(dataset), clip(branch)))
	}
	return c, g.storeFault("look a commit up", err)
}

// limitOf reads how many a page may have.
func limitOf(values url.Values, most, otherwise int) (int, *api.Problem) {
	text := values.Get("limit")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, badParameter("limit", fmt.Sprintf("%q is none; give 1 to %d", clip(text), most))
	}
	return n, nil
}

// listDatasets answers with the datasets that the caller may see.
func (g *Gateway) listDatasets(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	values, p := r.query([]string{"prefix"})
	if p != nil {
		return p
	}
	all := api.Datasets{Datasets: []api.Dataset{}}
	err := s.Datasets(r.Context(), values.Get("prefix"), func(d store.Dataset) error {
		if g.touches(r.caller, access.Read, d.Name) {
			all.Datasets = append(all.Datasets, api.Dataset{Name: d.Name, Branches: append([]string{}, d.Branches...)})
		}
		return nil
	})
	if err != nil {
		return g.storeFault("list the datasets", err)
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showCommit answers with one commit.
func (g *Gateway) showCommit(w http.ResponseWriter, r *request) *api.Problem {
	s, values, p := g.dataQuery(r, "at")
	if p != nil {
		return p
	}
	c, p := g.commitAt(r.Context(), s, values.Get("dataset"), values.Get("at"))
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, c)
	return nil
}

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
