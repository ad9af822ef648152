package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/transfer"
)

const (
	pageOfFiles  = 10_000
	commitWithin = 10 * time.Minute // enough for half a million changes and a distant store
)

// Carrier returns a client that moves objects to and from the gateway.
func (g *Gateway) Carrier() *transfer.Client {
	return &transfer.Client{Base: g.base.JoinPath("api", "v1", "data").String(), HTTP: g.client, Sign: func(r *http.Request) {
		// Without a token, the gateway answers that the token is missing.
		_ = g.addToken(r.Header)
	}}
}

// Commit commits changes to a branch. The request's name makes repeated calls one commit.
func (g *Gateway) Commit(ctx context.Context, asked api.CommitAsked, changes []api.Change) (done api.Committed, err error) {
	what := "commit to dataset " + asked.Dataset
	a, err := g.sendCommit(ctx, asked, changes)
	return done, g.read(what, a, err, &done)
}

// CheckCommit returns the error that a commit would return now, and commits nothing. The objects of
// the files need not be in the store yet.
func (g *Gateway) CheckCommit(ctx context.Context, asked api.CommitAsked, changes []api.Change) error {
	asked.DryRun = true
	a, err := g.sendCommit(ctx, asked, changes)
	if err == nil && a.status != http.StatusNoContent {
		err = g.failureError(a)
	}
	if err != nil {
		return fmt.Errorf("check the commit, before anything is uploaded: %w", err)
	}
	return nil
}

func (g *Gateway) sendCommit(ctx context.Context, asked api.CommitAsked, changes []api.Change) (wholeAnswer, error) {
	var body bytes.Buffer
	lines := json.NewEncoder(&body)
	err := lines.Encode(asked)
	for i := 0; err == nil && i < len(changes); i++ {
		err = lines.Encode(&changes[i])
	}
	if err != nil {
		return wholeAnswer{}, err
	}
	p := g.patience(commitWithin)
	p.each = commitWithin
	return p.sendUntilFinal(ctx, request{method: http.MethodPost, path: []string{"api", "v1", "data", "commits"},
		header: http.Header{"Content-Type": {"application/x-ndjson"}}, body: body.Bytes()})
}

// Datasets returns the datasets whose names begin with prefix.
func (g *Gateway) Datasets(ctx context.Context, prefix string) (all api.Datasets, err error) {
	err = g.get(ctx, "list the datasets", &all, toQuery("prefix", prefix), "data", "datasets")
	return all, err
}

// Files calls fn with the files at or below a path of one commit, in order.
func (g *Gateway) Files(ctx context.Context, dataset, at, path string, fn func(api.File) error) (c api.Commit, err error) {
	query := toQuery("dataset", dataset, "at", at, "path", path, "limit", strconv.Itoa(pageOfFiles))
	for {
		var page api.Files
		if err := g.get(ctx, "list the files of dataset "+dataset, &page, query, "data", "files"); err != nil {
			return c, err
		}
		for _, f := range page.Files {
			if err := fn(f); err != nil {
				return page.Commit, err
			}
		}
		if page.Next == "" {
			return page.Commit, nil
		}
		query.Set("at", page.Commit.ID) // the branch may get a new commit between pages
		query.Set("after", page.Next)
	}
}

// ModelFiles returns all files of a version of a model. An empty version means the champion.
func (g *Gateway) ModelFiles(ctx context.Context, model, version string) (api.ArtifactFiles, error) {
	return g.artifactFiles(ctx, "list the files of model "+model, toQuery("model", model, "version", version), "model", "files")
}

// RunFiles returns all files that a run has made. The beginning of the run's id is enough.
func (g *Gateway) RunFiles(ctx context.Context, run string) (api.ArtifactFiles, error) {
	return g.artifactFiles(ctx, "list the files of run "+run, url.Values{}, "runs", run, "files")
}

// artifactFiles reads all pages of a list of files.
func (g *Gateway) artifactFiles(ctx context.Context, what string, query url.Values, path ...string) (all api.ArtifactFiles, err error) {
	query.Set("limit", strconv.Itoa(pageOfFiles))
	for {
		var page api.ArtifactFiles
		if err := g.get(ctx, what, &page, query, path...); err != nil {
			return all, err
		}
		page.Files = append(all.Files, page.Files...)
		all = page
		if page.Next == "" {
			return all, nil
		}
		if page.Version != 0 {
			query.Set("version", strconv.Itoa(page.Version)) // the champion may change between pages
		}
		query.Set("after", page.Next)
	}
}

// Commits returns the newest commits of a branch.
func (g *Gateway) Commits(ctx context.Context, dataset, branch, after string, limit int) (all api.Log, err error) {
	err = g.get(ctx, "list the commits of dataset "+dataset, &all, toQuery("dataset", dataset, "branch", branch, "after", after, "limit", strconv.Itoa(limit)), "data", "log")
	return all, err
}

// Diff calls fn with the files that differ between two commits, in order.
func (g *Gateway) Diff(ctx context.Context, dataset, from, to string, fn func(api.Difference) error) error {
	query := toQuery("dataset", dataset, "from", from, "to", to, "limit", strconv.Itoa(pageOfFiles))
	for {
		var page api.Diff
		if err := g.get(ctx, "compare commits of dataset "+dataset, &page, query, "data", "diff"); err != nil {
			return err
		}
		for _, d := range page.Files {
			if err := fn(d); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		query.Set("from", page.From.ID)
		query.Set("to", page.To.ID)
		query.Set("after", page.Next)
	}
}

// Branch makes a branch.
func (g *Gateway) Branch(ctx context.Context, asked api.BranchAsked) (done api.Branched, err error) {
	err = g.postUntilFinal(ctx, "make branch "+asked.Branch+" of dataset "+asked.Dataset, asked, &done, "data", "branches")
	return done, err
}

// Collect removes unreferenced objects. The request is sent once and has no timeout.
func (g *Gateway) Collect(ctx context.Context, asked api.CollectAsked) (done api.Collected, err error) {
	r, err := asking(asked, "data", "gc")
	if err != nil {
		return done, err
	}
	a, err := g.sendAndRead(ctx, r)
	return done, g.read("remove unused objects", a, err, &done)
}

// toQuery returns the pairs that have a value as query parameters.
func toQuery(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// ForgetKey requests that a key be forgotten. A dry run returns what would be deleted.
func (g *Gateway) ForgetKey(ctx context.Context, named Asking, ask api.KeyAsked) (end api.KeyEnd, err error) {
	return end, g.postNamed(ctx, named, "forget the key", ask, &end, "keys", "forget")
}

// ForgottenKey returns the progress of forgetting a key.
func (g *Gateway) ForgottenKey(ctx context.Context, id string) (end api.KeyEnd, err error) {
	return end, g.get(ctx, "look for the receipt", &end, nil, "keys", "forgotten", id)
}
