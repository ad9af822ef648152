package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
)

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
	g.log.Info("gateway: garbage collection ended", "by", r.loggedName(), "what", fmt.Sprintf("%d of %d objects, %d bytes", found.Removed, found.Objects, found.Freed))
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
