package gateway

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
)

const (
	mostChanges = 500_000   // of one commit
	mostCommit  = 128 << 20 // bytes of its body
)

// commit commits changes to a branch. Each is a line, read as it comes.
func (g *Gateway) commit(w http.ResponseWriter, r *request) *api.Problem {
	s, p := g.objects()
	if p != nil {
		return p
	}
	if g.opt.Announce == nil {
		return noStore() // a commit that nobody hears of is none
	}
	if r.ContentLength > mostCommit {
		return tooManyChanges()
	}
	f, p := g.flowing(r)
	if p != nil {
		return p
	}
	c := &changes{g: g, r: r, f: f}
	asked, all, p := c.read()
	if p != nil {
		return p
	}
	done, err := s.Commit(r.Context(), store.CommitRequest{CommitAsked: asked, By: r.name(), Time: time.Now(), Announce: g.opt.Announce}, all)
	switch {
	case err != nil && done.ID != "":
		return g.unheard(done, err)
	case err != nil:
		return g.storeFault("commit to dataset "+asked.Dataset, err)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// unheard is the problem of a commit that stands and whose event could not be
// published.
func (g *Gateway) unheard(done api.Committed, err error) *api.Problem {
	g.log.Warn("a commit stands, and its event is not published yet", "what", done.Dataset+"@"+done.ID, "reason", err)
	return unavailable(fmt.Sprintf("commit %s stands, and its event could not be published; commit again under the same request, or wait until it has been published", done.ID))
}

// changes reads the body of a commit. What it comes to in memory is paid for as
// it grows.
type changes struct {
	g       *Gateway
	r       *request
	f       *flow
	free    int          // bytes that are paid for
	problem *api.Problem // why no more could be paid
}

// inMemory is what a byte of the body comes to, about.
const inMemory = 2

func (c *changes) Read(to []byte) (int, error) {
	n, err := c.f.Read(to)
	if c.free -= n; c.free < 0 {
		if c.problem = c.g.charge(c.r, inMemory*firstGrown); c.problem != nil {
			return 0, c.problem
		}
		c.free += firstGrown
	}
	return n, err
}

func (c *changes) read() (asked api.CommitAsked, all []api.Change, p *api.Problem) {
	d := json.NewDecoder(c)
	d.DisallowUnknownFields()
	if err := d.Decode(&asked); err != nil {
		return asked, nil, c.fault("the first line, which says what to commit to", err)
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

func (c *changes) fault(what string, err error) *api.Problem {
	c.r.answer.Header().Set("Connection", "close")
	switch {
	case c.problem != nil:
		return c.problem
	case c.f.err != nil:
		return c.g.unread(c.r, c.f.err)
	case errors.Is(err, io.EOF):
		return invalidRequest("the body is empty: send a line that says what to commit to, and a line a change")
	}
	return invalidRequest(fmt.Sprintf("%s is not what is asked for here: %s; /api/v1/openapi.json says what is", what, clip(strings.TrimPrefix(err.Error(), "json: "))))
}

// badChange refuses a change that cannot be one. What a path may be is the
// store's to say.
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

// mostSaid is how long a commit's message and subject may be. An event that is too
// large for Kafka could not be published, now or later, and the commit would stand
// without one.
const mostSaid = 16 << 10

// check sees whether this caller may commit there, and whether the event could
// be published: what is committed is announced until it has been.
func (c *changes) check(asked *api.CommitAsked) *api.Problem {
	if asked.Dataset == "" {
		return badParameter("dataset", "name one, such as bots/bot-42")
	}
	asked.Branch = orElse(asked.Branch, mainBranch)
	if keys := c.g.keysOf(asked.Dataset); asked.Subject == "" && len(keys) > 1 {
		return badParameter("subject", fmt.Sprintf("the dataset belongs to the keys %q, by what recipes read and write: say which of them the commit is for", keys))
	} else if asked.Subject == "" {
		asked.Subject = keys[0]
	}
	asked.Request = orElse(asked.Request, rand.Text())
	if p := c.g.mayTouch(c.r, access.Operate, asked.Dataset); p != nil {
		return p
	}
	if !c.r.caller.AllKeys(access.Operate) && !c.r.caller.MayTouch(access.Operate, asked.Subject) {
		return forbidden(fmt.Sprintf("the subject %q is not among the keys that you may operate: leave it out", clip(asked.Subject)))
	}
	for name, text := range map[string]string{"subject": asked.Subject, "message": asked.Message} {
		if len(text) > mostSaid {
			return badParameter(name, fmt.Sprintf("it has %d bytes and may have %d: it stands in the commit's event", len(text), mostSaid))
		}
	}
	v := broker.View{ID: "commit", Source: c.g.names().Source("gateway"), Type: "new-data", Subject: asked.Subject}
	for name, value := range map[string]string{tidemill.AttrDataset: asked.Dataset, tidemill.AttrBranch: asked.Branch} {
		if err := v.Set(name, value); err != nil {
			return badParameter(name, err.Error())
		}
	}
	if err := v.Validate(); err != nil {
		return badParameter(attributeOf(err), err.Error())
	}
	return nil
}

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
