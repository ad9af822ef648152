package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
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

// listDatasets answers with the datasets that the caller may see.
func (g *Gateway) listDatasets(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	values, p := r.parseQuery([]string{"prefix"})
	if p != nil {
		return p
	}
	all := api.Datasets{Datasets: []api.Dataset{}}
	err := s.Datasets(r.Context(), values.Get("prefix"), func(d store.Dataset) error {
		if g.hasRoleFor(r.caller, access.Read, d.Name) {
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
	if err != nil {
		return g.storeFault("list the commits of "+branch, err)
	}
	writeJSON(w, http.StatusOK, page)
	return nil
}

const (
	mostChanges = 500_000   // changes in one commit
	mostCommit  = 128 << 20 // bytes of a commit's body
)

// commitChanges commits changes to a branch. Each line of the body is a change, and is decoded when
// it arrives.
func (g *Gateway) commitChanges(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	if g.opt.Announce == nil {
		return noStore() // a commit without its event would call no function
	}
	if r.ContentLength > mostCommit {
		return tooManyChanges()
	}
	f, p := g.newTransfer(r)
	if p != nil {
		return p
	}
	c := &commitBody{g: g, r: r, f: f}
	asked, all, p := c.read()
	if p != nil {
		return p
	}
	ask := store.CommitRequest{CommitAsked: asked, By: r.callerName(), Time: time.Now(), Announce: g.opt.Announce}
	if asked.DryRun {
		if err := s.Check(r.Context(), ask, all); err != nil {
			return g.storeFault("check a commit to dataset "+asked.Dataset, err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	done, err := s.Commit(r.Context(), ask, all)
	switch {
	case err != nil && done.ID != "":
		return g.announceProblem(done, err)
	case err != nil:
		return g.storeFault("commit to dataset "+asked.Dataset, err)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// announceProblem is the problem of a stored commit whose event could not be published.
func (g *Gateway) announceProblem(done api.Committed, err error) *api.Problem {
	g.log.Warn("gateway: publishing the event of a commit failed; the commit is stored and the event is published later", "what", done.Dataset+"@"+done.ID, "reason", err)
	return unavailable(fmt.Sprintf("commit %s is stored, but its event could not be published; send the same request again, or wait until the event has been published", done.ID))
}

// commitBody reads the body of a commit and charges the caller for its memory.
type commitBody struct {
	g       *Gateway
	r       *request
	f       *bodyTransfer
	free    int          // charged bytes that are still unused
	problem *api.Problem // reason why charging failed
}

// inMemory is the approximate number of bytes of memory that one byte of the body needs.
const inMemory = 2

func (c *commitBody) Read(to []byte) (int, error) {
	n, err := c.f.Read(to)
	if c.free -= n; c.free < 0 {
		if c.problem = c.g.chargeMemory(c.r, inMemory*firstGrown); c.problem != nil {
			return 0, c.problem
		}
		c.free += firstGrown
	}
	return n, err
}

func (c *commitBody) read() (asked api.CommitAsked, all []api.Change, p *api.Problem) {
	d := json.NewDecoder(c)
	d.DisallowUnknownFields()
	if err := d.Decode(&asked); err != nil {
		return asked, nil, c.fault("the first line, which names the dataset", err)
	}
	if p := c.check(&asked); p != nil {
		return asked, nil, p
	}
	for {
		var one api.Change
		err := d.Decode(&one)
		switch {
		case errors.Is(err, io.EOF):
			return asked, all, nil
		case err != nil:
			return asked, nil, c.fault(fmt.Sprintf("line %d, a change", len(all)+2), err)
		case len(all) == mostChanges:
			c.r.answer.Header().Set("Connection", "close")
			return asked, nil, tooManyChanges()
		}
		if p := badChange(&one, len(all)+2); p != nil {
			c.r.answer.Header().Set("Connection", "close")
			return asked, nil, p
		}
		all = append(all, one)
	}
}

func tooManyChanges() *api.Problem {
	return tooLarge(fmt.Sprintf("a commit may have %d changes in %d bytes: commit them in parts", mostChanges, mostCommit))
}

func (c *commitBody) fault(what string, err error) *api.Problem {
	c.r.answer.Header().Set("Connection", "close")
	switch {
	case c.problem != nil:
		return c.problem
	case c.f.err != nil:
		return c.g.bodyProblem(c.r, c.f.err)
	case errors.Is(err, io.EOF):
		return invalidRequest("the body is empty: send a line that names the dataset, and one line per change")
	}
	return invalidRequest(fmt.Sprintf("%s is invalid: %s; see /api/v1/openapi.json", what, clipText(strings.TrimPrefix(err.Error(), "json: "))))
}

// badChange refuses an impossible change. The store itself checks the path.
func badChange(c *api.Change, line int) *api.Problem {
	var p *api.Problem
	switch {
	case c.Path == "":
		p = badParameter("path", "it is empty")
	case c.Remove:
		return nil
	case c.Size < 0:
		p = badParameter("size", "it is negative")
	default:
		p = badDigest(c.Digest)
	}
	for i := 0; p == nil && i < len(c.Parts); i++ {
		p = badObject(c.Parts[i])
	}
	if p != nil {
		p.Detail = fmt.Sprintf("line %d: %s", line, p.Detail)
	}
	return p
}

// mostSaid is the maximum size of a commit's message and of its subject, in bytes. An event that is
// too large for Kafka could never be published, and the commit would remain without an event.
const mostSaid = 16 << 10

// check verifies that the caller may commit to the dataset, and that Kafka can accept the commit's
// event, because the publication of the event is retried until it succeeds.
func (c *commitBody) check(asked *api.CommitAsked) *api.Problem {
	if asked.Dataset == "" {
		return badParameter("dataset", "name one, such as bots/bot-42")
	}
	asked.Branch = orElse(asked.Branch, mainBranch)
	if keys := c.g.keysOf(asked.Dataset); asked.Subject == "" && len(keys) > 1 {
		return badParameter("subject", fmt.Sprintf("recipes use the dataset for the keys %q: give the one that the commit is for", keys))
	} else if asked.Subject == "" {
		asked.Subject = keys[0]
	}
	asked.Request = orElse(asked.Request, rand.Text())
	if p := c.g.mayTouch(c.r, access.Operate, asked.Dataset); p != nil {
		return p
	}
	if !c.r.caller.AllKeys(access.Operate) && !c.r.caller.MayTouch(access.Operate, asked.Subject) {
		return forbidden(fmt.Sprintf("the subject %q is not among the keys that you may operate: leave it out", clipText(asked.Subject)))
	}
	for name, text := range map[string]string{"subject": asked.Subject, "message": asked.Message} {
		if len(text) > mostSaid {
			return badParameter(name, fmt.Sprintf("it has %d bytes and may have %d: it is part of the commit's event", len(text), mostSaid))
		}
	}
	v := broker.View{ID: "commit", Source: c.g.installNames().Source("data"), Type: tidemill.TypeNewData, Subject: asked.Subject}
	for name, value := range map[string]string{tidemill.AttrDataset: asked.Dataset, tidemill.AttrBranch: asked.Branch} {
		if err := v.Set(name, value); err != nil {
			return badParameter(name, err.Error())
		}
	}
	if err := v.Validate(); err != nil {
		return badParameter(attributeOf(err), err.Error())
	}
	return c.checkTaken(&v, asked)
}

// checkTaken verifies that the recipes and scorers that get the commit's event take only keys from it that the
// caller may operate. The store gives the commit its id later.
func (c *commitBody) checkTaken(v *broker.View, asked *api.CommitAsked) *api.Problem {
	if c.r.caller.AllKeys(access.Operate) {
		return nil
	}
	v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrCommit, Value: v.ID}, broker.Attribute{Name: tidemill.AttrAuthID, Value: c.r.callerName()})
	v.DataContentType = "application/json"
	v.Data, _ = json.Marshal(map[string]string{"message": asked.Message}) // texts can be encoded
	for _, t := range c.g.currentPlan().takers.Taken("", v) {
		if !c.r.caller.MayTouch(access.Operate, t.Key) {
			return forbidden(fmt.Sprintf("%s takes its key from %s of the commit's event, which is %q, and you may not operate on this key: give another %[2]s, or ask for the key for your token", t.By, t.Place, clipText(t.Key)))
		}
	}
	return nil
}

// createBranch creates a branch at a commit.
func (g *Gateway) createBranch(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objectStore()
	if p != nil {
		return p
	}
	var asked api.BranchAsked
	if p := g.readCommand(r, &asked); p != nil {
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

// branchAt does not change an existing branch, because it may have new commits. If the head of the
// existing branch is the wanted commit, the request counts as a success.
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
		return done, conflict(fmt.Sprintf("branch %q of dataset %q exists already, at commit %s: give the new one another name", clipText(asked.Branch), clipText(asked.Dataset), head.ID))
	}
	done.Commit = head
	return done, nil
}

// collectGarbage removes the objects from the store that no commit, run or model version uses.
func (g *Gateway) collectGarbage(w http.ResponseWriter, r *request) *api.Problem {
	c, p := g.parseCollection(r)
	if p != nil {
		return p
	}
	if !g.collecting.TryLock() {
		return unavailable("a garbage collection is running; try again after its end")
	}
	defer g.collecting.Unlock()
	control := http.NewResponseController(&r.answer)
	_, _ = control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}) // a collection has no time limit
	if p := g.treesInUse(r.Context(), &c); p != nil {
		return p
	}
	found, err := g.opt.Store.Collect(r.Context(), c)
	if err != nil {
		return g.storeFault("collect", err)
	}
	g.log.Info("gateway: garbage collection ended", "by", r.callerName(), "what", fmt.Sprintf("%d of %d objects, %d bytes", found.Removed, found.Objects, found.Freed))
	writeJSON(w, http.StatusOK, api.Collected{Objects: found.Objects, Kept: found.Kept, Removed: found.Removed,
		Bytes: found.Bytes, Freed: found.Freed, DryRun: c.DryRun})
	return nil
}

// parseCollection reads a request for a collection. The request is refused if the caller lacks the
// role for all keys, or if the gateway has no ledger to find the objects in use.
func (g *Gateway) parseCollection(r *request) (c store.Collection, p *api.Problem) {
	var asked api.CollectAsked
	if p := g.readCommand(r, &asked); p != nil {
		return c, p
	}
	c = store.Collection{DryRun: asked.DryRun, Force: asked.Force, Older: time.Duration(asked.OlderSeconds * float64(time.Second))}
	switch {
	case g.opt.Store == nil, g.opt.Ledger == nil:
		return c, noStore()
	case !r.caller.AllKeys(access.Operate):
		return c, forbidden("a garbage collection is for all keys, and you may operate only on some: use a token for all keys")
	}
	return c, nil
}

// treesInUse lists the trees in use: inputs and champions of runs that have not ended, outputs
// of all runs, and the trees of model versions.
func (g *Gateway) treesInUse(ctx context.Context, c *store.Collection) *api.Problem {
	known := map[string]bool{}
	for q := (ledger.Query{Limit: mostCommits}); ; {
		page, err := g.opt.Ledger.Runs(ctx, q)
		if err != nil {
			return g.collectProblem("what runs use", err)
		}
		for i := range page.Runs {
			known[page.Runs[i].ID] = true
			c.Trees = append(c.Trees, treesOf(&page.Runs[i])...)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	c.Runs = func(run string) bool { return known[run] }
	return g.keptVersions(ctx, c)
}

// keptVersions lists the trees of all kept model versions: their artifacts and reports.
func (g *Gateway) keptVersions(ctx context.Context, c *store.Collection) *api.Problem {
	for q := (ledger.ModelQuery{Limit: mostCommits}); ; {
		page, err := g.opt.Ledger.Models(ctx, q)
		for i := 0; err == nil && i < len(page.Models); i++ {
			var versions []ledger.VersionRecord
			versions, err = g.opt.Ledger.Versions(ctx, page.Models[i].Name)
			for j := range versions {
				c.Trees = append(c.Trees, slices.DeleteFunc([]string{versions[j].Artifact, versions[j].Report}, func(t string) bool { return t == "" })...)
			}
		}
		if err != nil {
			return g.collectProblem("what models use", err)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// collectProblem is the problem of a failed search for objects in use. After it, no object may be
// removed.
func (g *Gateway) collectProblem(what string, err error) *api.Problem {
	if errors.Is(err, ledger.ErrCatchingUp) {
		p := g.catchingUp()
		p.Detail = what + " is not known: " + p.Detail
		return p
	}
	g.log.Warn("gateway: listing the data in use failed; garbage collection does not begin", "what", what, "reason", err)
	return unavailable(what + " cannot be read now; try again later")
}

// treesOf returns the trees that a run uses.
func treesOf(r *tidemill.Run) (trees []string) {
	add := func(tree string) {
		if tree != "" {
			trees = append(trees, tree)
		}
	}
	if r.Result != nil {
		add(r.Result.Artifact)
	}
	if r.State.Ended() {
		return trees
	}
	for _, a := range r.Attempts {
		add(a.ResumedFrom)
	}
	var plan tidemill.Plan
	if json.Unmarshal(r.Plan, &plan) == nil { // a run that has not begun has no plan
		for _, in := range plan.Inputs {
			add(in.Tree)
		}
		if plan.Champion != nil {
			add(plan.Champion.Artifact)
		}
	}
	return trees
}
