package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev/internal/access"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/store"
)

const (
	mainBranch = "main"
	pageFiles  = 1000   // of a page, unless it is asked for otherwise
	mostFiles  = 10_000 // of any page
)

// keyOf is the key that a dataset belongs to: bot-42 of bots/bot-42.
func keyOf(dataset string) string { return dataset[strings.LastIndex(dataset, "/")+1:] }

// mayTouch refuses a dataset whose key is not among the caller's.
func mayTouch(r *request, role access.Role, dataset string) *api.Problem {
	if r.caller.AllKeys(role) || r.caller.MayTouch(role, keyOf(dataset)) {
		return nil
	}
	return forbidden(fmt.Sprintf("dataset %q belongs to the key %q, which is not among those that you may %s: have it added where your token is listed",
		clip(dataset), clip(keyOf(dataset)), role))
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
	return s, values, mayTouch(r, access.Read, values.Get("dataset"))
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
	all, every := api.Datasets{Datasets: []api.Dataset{}}, r.caller.AllKeys(access.Read)
	err := s.Datasets(r.Context(), values.Get("prefix"), func(d store.Dataset) error {
		if every || r.caller.MayTouch(access.Read, keyOf(d.Name)) {
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
