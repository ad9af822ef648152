package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
)

// bearer is the attempt that sent a request.
type bearer struct {
	name   string
	number int
	run    *tidemill.Run // state in the ledger, or in memory up to a second old; read-only
	lately bool          // run is from memory
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

// isUnderWay reports whether an attempt is the current one of its run.
func isUnderWay(run *tidemill.Run, number int) bool {
	a := run.Attempt()
	return a != nil && a.Number == number
}

// admitAttempt admits an attempt by its token. The token is valid for as long as the ledger
// lists the attempt. The ledger's answer also says whether the attempt is still current, so
// each route decides how fresh that answer must be.
//
// The token is required even if the gateway has no access tokens. Local callers may then read
// and publish everything, but must not end another caller's run by mistake.
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

// attemptToken returns the bearer token of the request.
func (g *Gateway) attemptToken(w http.ResponseWriter, r *request) (string, *api.Problem) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") && token != "" {
		return strings.TrimSpace(token), nil
	}
	g.metrics.refused.token.Inc()
	w.Header().Set("WWW-Authenticate", challenge)
	return "", unauthenticated("this door takes the token of an attempt, as Authorization: Bearer …")
}

// bearerOf looks up the attempt that the path names. Its run is nil if the ledger does not
// know it. The answer is then the same as for a wrong token, so that a stranger cannot find
// out which runs exist.
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

// runOf asks the ledger for a run; nil if the ledger does not list it.
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

// superseded returns the problem of an attempt that no longer counts. It also forgets the
// attempt, so that the next request in its name asks the ledger and not the memory.
func (g *Gateway) superseded(b bearer) *api.Problem {
	g.attempts.forget(b.name)
	g.metrics.refused.superseded.Inc()
	return supersededBy(b)
}

// The roles of the agents' routes. No caller has one: only the token of the attempt in the
// path opens these routes, and it opens no others.
const (
	ofAttempt        access.Role = "attempt"         // the ledger is asked whether the attempt is current
	ofAttemptLately  access.Role = "attempt, lately" // the ledger's answer of up to a second ago suffices
	ofAttemptForever access.Role = "attempt, ended"  // the attempt may have ended
)

func isOfAttempt(r access.Role) bool {
	return r == ofAttempt || r == ofAttemptLately || r == ofAttemptForever
}

const agentsDoor = "/agent/v1/attempts/{attempt}"

// agentTable lists the routes of agents. The order, and each request that stores something
// under the run's name, needs ofAttempt. A request that only reads, or stores objects that
// nothing refers to yet, needs ofAttemptLately: an answer that is a second old does no harm
// there.
func (g *Gateway) agentTable() []route {
	return []route{
		{method: http.MethodGet, path: agentsDoor, role: ofAttempt, handle: g.agentOrder},
		{method: http.MethodGet, path: agentsDoor + "/events", role: ofAttemptLately, handle: g.agentEvents},
		{method: http.MethodGet, path: agentsDoor + "/files", role: ofAttemptLately, handle: g.agentFiles},
		{method: http.MethodPost, path: agentsDoor + "/objects/missing", role: ofAttemptLately, handle: g.missingObjects},
		{method: http.MethodPost, path: agentsDoor + "/objects", role: ofAttemptLately, handle: g.putObjects},
		{method: http.MethodPost, path: agentsDoor + "/object", role: ofAttemptLately, handle: g.putObject},
		{method: http.MethodGet, path: agentsDoor + "/object", role: ofAttemptLately, handle: g.getObject},
		{method: http.MethodPost, path: agentsDoor + "/beat", role: ofAttempt, handle: g.agentBeat},
		{method: http.MethodPost, path: agentsDoor + "/progress", role: ofAttemptLately, handle: g.agentProgress},
		{method: http.MethodPost, path: agentsDoor + "/log", role: ofAttempt, handle: g.agentLog},
		{method: http.MethodPost, path: agentsDoor + "/checkpoint", role: ofAttempt, handle: g.agentCheckpoint},
		{method: http.MethodPost, path: agentsDoor + "/finish", role: ofAttemptForever, handle: g.agentFinish},
		{method: http.MethodPost, path: agentsDoor + "/next", role: ofAttemptForever, handle: g.agentNext},
	}
}

// attempts remembers the ledger's last answer about each attempt, and the amounts of progress
// and log it has sent. The memory belongs to one gateway process: a restarted gateway, or
// another replica, begins without it. So it is not a fence. The ledger is the fence: each
// request that stores something under the run's name asks it.
type attempts struct {
	mu    sync.Mutex
	of    map[string]*attempt
	sweep int // number of attempts at which old ones are removed
}

// attempt is the memory about one attempt.
type attempt struct {
	run   *tidemill.Run // read-only
	asked time.Time     // time of the ledger's answer
	used  time.Time

	steps   float64 // lines of progress that it may send now
	stepped time.Time
	logged  int64 // bytes of log that came through this gateway
	chunks  []chunk
}

// chunk is a chunk of a log. The newest few are remembered.
type chunk struct{ seq, bytes int }

const (
	latelyFor    = time.Second // maximum age of the ledger's answer where a mistake does no harm
	attemptKept  = time.Minute // time without a request after which an attempt is forgotten
	leastAttempt = 256         // number of attempts up to which none is removed
	chunksKept   = 4           // number of remembered chunks; an agent sends one after the other
)

// lately returns an attempt's run if the ledger's answer is at most a second old.
func (s *attempts) lately(name string, now time.Time) *tidemill.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil || now.Sub(a.asked) > latelyFor {
		return nil
	}
	a.used = now
	return a.run
}

// keep remembers the ledger's answer about an attempt.
func (s *attempts) keep(name string, run *tidemill.Run, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.sweep = map[string]*attempt{}, leastAttempt
	}
	a := s.of[name]
	if a == nil {
		a = &attempt{steps: api.MaxSteps, stepped: now}
		s.of[name] = a
	}
	a.run, a.asked, a.used = run, now, now
	if len(s.of) > s.sweep {
		s.clean(now)
	}
}

// clean forgets attempts without a recent request. It runs again only when the number of
// attempts has doubled, so that each attempt costs little.
func (s *attempts) clean(now time.Time) {
	for name, a := range s.of {
		if now.Sub(a.used) > attemptKept {
			delete(s.of, name)
		}
	}
	s.sweep = max(2*len(s.of), leastAttempt)
}

func (s *attempts) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// step counts n lines of progress, and reports whether the attempt may send so many now.
func (s *attempts) step(name string, n int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true // it was forgotten meanwhile, so it has not sent much
	}
	a.steps = min(a.steps+now.Sub(a.stepped).Seconds()*api.StepsASec, api.MaxSteps)
	a.stepped = now
	if a.steps < float64(n) {
		return false
	}
	a.steps -= float64(n)
	return true
}

// log counts a chunk of the log, unless the log would exceed most bytes. If one of the newest
// chunks comes again, only its growth counts. Any other chunk counts in full: otherwise an
// agent could reuse numbers to have all its chunks counted as repeats.
func (s *attempts) log(name string, seq, bytes int, most int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true
	}
	was := 0
	at := slices.IndexFunc(a.chunks, func(c chunk) bool { return c.seq == seq })
	if at >= 0 {
		was = a.chunks[at].bytes
	}
	more := int64(max(bytes-was, 0))
	if more > 0 && a.logged+more > most {
		return false
	}
	if at >= 0 {
		a.chunks = slices.Delete(a.chunks, at, at+1)
	} else if len(a.chunks) == chunksKept {
		a.chunks = slices.Delete(a.chunks, 0, 1)
	}
	a.logged, a.chunks = a.logged+more, append(a.chunks, chunk{seq, max(bytes, was)})
	return true
}

// The problems of attempts.

// supersededBy is the problem of an attempt that no longer counts, with the reason.
func supersededBy(b bearer) *api.Problem {
	return problem(api.Superseded, http.StatusConflict, "the attempt counts no more",
		fmt.Sprintf("attempt %s: %s; end its command and leave, nothing it says is taken any more", clip(b.name), whyNotUnderWay(b.run, b.number)))
}

// whyNotUnderWay says why an attempt is not the current one of its run.
func whyNotUnderWay(run *tidemill.Run, number int) string {
	text := "it has not begun"
	if a, ok := attemptOf(run, number); ok && !a.Ended.IsZero() {
		text = "it has ended, " + string(a.Outcome)
		if a.Reason != "" {
			text += ": " + a.Reason
		}
	}
	if now := run.Attempt(); now != nil {
		return fmt.Sprintf("%s, and attempt %d is under way", text, now.Number)
	}
	return fmt.Sprintf("%s, and its run is %s", text, run.State)
}

func tooManySteps() *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at once",
		fmt.Sprintf("an attempt may tell %d lines of progress a second, and %d at once: keep the newest and send it again a little later", api.StepsASec, api.MaxSteps))
}
