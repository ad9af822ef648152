package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	pageFiles  = 1000   // usual number of files on a page
	mostFiles  = 10_000 // largest number of files on a page
)

// keyOwnership says which keys the datasets of one config belong to.
type keyOwnership struct {
	config *config.Config
	owners *config.Owners
}

// keysOf returns the keys that a dataset belongs to, such as bot-42 for bots/bot-42.
func (g *Gateway) keysOf(dataset string) []string { return g.owners().Of(dataset) }

// owners returns the ownership of datasets by the config in force.
func (g *Gateway) owners() *config.Owners {
	c, is := g.opt.Config(), g.ownership.Load()
	if is == nil || is.config != c {
		is = &keyOwnership{c, config.OwnersOf(c)}
		g.ownership.Store(is)
	}
	return is.owners
}

// hasRoleFor reports whether a caller has a role for a dataset. The caller needs the role for
// each key of the dataset, because a change affects all of them. A dataset that a recipe without
// keys makes is for callers without a limit of keys.
func (g *Gateway) hasRoleFor(caller *access.Caller, role access.Role, dataset string) bool {
	return caller.AllKeys(role) || !g.owners().Keyless(dataset) && !slices.ContainsFunc(g.keysOf(dataset), func(key string) bool { return !caller.MayTouch(role, key) })
}

// mayTouch refuses a dataset unless the caller may touch all its keys.
func (g *Gateway) mayTouch(r *request, role access.Role, dataset string) *api.Problem {
	if g.hasRoleFor(r.caller, role, dataset) {
		return nil
	}
	if g.owners().Keyless(dataset) {
		return forbidden(fmt.Sprintf("dataset %q is made by a recipe without keys, so only callers without a limit of keys may %s it", clipText(dataset), role))
	}
	keys := g.keysOf(dataset)
	if len(keys) > 1 {
		return forbidden(fmt.Sprintf("recipes use dataset %q for the keys %q, and you may not %s all of them: ask for these keys for your token", clipText(dataset), keys, role))
	}
	return forbidden(fmt.Sprintf("dataset %q belongs to the key %q, which you may not %s: ask for this key for your token",
		clipText(dataset), clipText(keys[0]), role))
}

// dataQuery reads the parameters of a request about one dataset.
func (g *Gateway) dataQuery(r *request, known ...string) (*store.Store, url.Values, *api.Problem) {
	s, p := g.objectStore()
	if p != nil {
		return nil, nil, p
	}
	values, p := r.parseQuery(append([]string{"dataset"}, known...))
	if p != nil {
		return nil, nil, p
	}
	if values.Get("dataset") == "" {
		return nil, nil, badParameter("dataset", "name one; GET /api/v1/data/datasets lists them")
	}
	return s, values, g.mayTouch(r, access.Read, values.Get("dataset"))
}

// commitAt returns the head of a branch, or a commit by its id or the beginning of its id.
// The default is the head of main.
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
		return c, unknownData(fmt.Sprintf("dataset %q has no branch %q and no commit whose id begins with it; GET /api/v1/data/datasets lists datasets and branches", clipText(dataset), clipText(branch)))
	}
	return c, g.storeFault("look a commit up", err)
}

// limitOf reads the page size.
func limitOf(values url.Values, most, otherwise int) (int, *api.Problem) {
	text := values.Get("limit")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, badParameter("limit", fmt.Sprintf("%q is not valid; give 1 to %d", clipText(text), most))
	}
	return n, nil
}

// listDatasets answers with the datasets that the caller may see: all of them, or a page if the
// request has a limit.
func (g *Gateway) listDatasets(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	values, p := r.parseQuery([]string{"prefix", "after", "limit"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostFiles, math.MaxInt)
	if p != nil {
		return p
	}
	all, after := api.Datasets{Datasets: []api.Dataset{}}, values.Get("after")
	err := s.Datasets(r.Context(), values.Get("prefix"), func(d store.Dataset) error {
		switch {
		case d.Name <= after || !g.hasRoleFor(r.caller, access.Read, d.Name):
			return nil
		case len(all.Datasets) == limit:
			all.Next = all.Datasets[limit-1].Name
			return errFull
		}
		all.Datasets = append(all.Datasets, api.Dataset{Name: d.Name, Branches: append([]string{}, d.Branches...)})
		return nil
	})
	if err != nil && !errors.Is(err, errFull) {
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
	var page api.Files
	if page.Commit, p = g.commitAt(r.Context(), s, values.Get("dataset"), values.Get("at")); p != nil {
		return p
	}
	var err error
	if page.Files, page.Next, err = pageOfTree(r.Context(), s, page.Commit.Tree, values, limit); err != nil {
		return g.storeFault("list files", err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

// diffCommits answers with a page of the differences between two commits.
func (g *Gateway) diffCommits(w http.ResponseWriter, r *request) *api.Problem {
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

// sendDataFile answers with the bytes of one file of a commit.
func (g *Gateway) sendDataFile(w http.ResponseWriter, r *request) *api.Problem {
	s, values, p := g.dataQuery(r, "at", "path")
	if p != nil {
		return p
	}
	c, p := g.commitAt(r.Context(), s, values.Get("dataset"), values.Get("at"))
	if p != nil {
		return p
	}
	return g.sendFile(w, r, artifact{name: "commit " + c.ID + " of " + c.Dataset, tree: c.Tree}, values.Get("path"))
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
	page, begun, found := api.Log{Commits: []api.Commit{}}, after == "", false
	err := s.Log(r.Context(), dataset, branch, func(c api.Commit) bool {
		found = true
		switch {
		case !begun: // by id: numbers count per branch, and a branch may begin with commits of another
			begun = c.ID == after
		case len(page.Commits) == limit:
			page.Next = page.Commits[limit-1].ID
			return false
		default:
			page.Commits = append(page.Commits, c)
		}
		return true
	})
	switch {
	case errors.Is(err, store.ErrNotFound) && !found:
		return unknownData(fmt.Sprintf("dataset %q has no branch %q; GET /api/v1/data/datasets lists datasets and branches", clipText(dataset), clipText(branch)))
	case err != nil:
		return g.storeFault("list the commits of "+branch, err)
	case !begun:
		return badParameter("after", clipText(after)+" is no commit of this branch; give the next of the page before")
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}
