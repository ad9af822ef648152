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

// bearer is the attempt that a request speaks for.
type bearer struct {
	name   string
	number int
	run    *tidemill.Run // as the ledger has it, or had it a moment ago; not to be changed
	lately bool          // a moment ago
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

// isUnderWay tells whether an attempt is the one that counts.
func isUnderWay(run *tidemill.Run, number int) bool {
	a := run.Attempt()
	return a != nil && a.Number == number
}

// admitAttempt lets an attempt in by its token, which is good for as long as the
// ledger names the attempt: whether it is still the one under way is told from
// the ledger's word, and so is to be as fresh as the route asks for.
//
// At a door without tokens of ours this one is asked for all the same: whoever
// reaches the door may read and publish everything, but not end somebody's run
// in another's name by a slip.
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

// attemptToken is what the request bears.
func (g *Gateway) attemptToken(w http.ResponseWriter, r *request) (string, *api.Problem) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") && token != "" {
		return strings.TrimSpace(token), nil
	}
	g.metrics.refused.token.Inc()
	w.Header().Set("WWW-Authenticate", challenge)
	return "", unauthenticated("this door takes the token of an attempt, as Authorization: Bearer …")
}

// bearerOf asks who the path names. Its run is nil where the ledger knows none:
// the answer is then the same as to a wrong token, so that nobody learns here
// what runs there are.
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

// runOf asks the ledger for a run; nil is one that it does not name.
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

// superseded is the problem of an attempt that counts no more. What is
// remembered of it is forgotten, so that the next who comes by its name costs a
// question to the ledger and not the memory.
func (g *Gateway) superseded(b bearer) *api.Problem {
	g.attempts.forget(b.name)
	g.metrics.refused.superseded.Inc()
	return supersededBy(b)
}

// The roles of the agents' door. None is a caller's: only the token of the
// attempt that the path names opens it, and that token opens nothing else.
const (
	ofAttempt        access.Role = "attempt"         // the ledger is asked whether it is still under way
	ofAttemptLately  access.Role = "attempt, lately" // what the ledger said a moment ago will do
	ofAttemptForever access.Role = "attempt, ended"  // it may have ended
)

func isOfAttempt(r access.Role) bool {
	return r == ofAttempt || r == ofAttemptLately || r == ofAttemptForever
}

const agentsDoor = "/agent/v1/attempts/{attempt}"

// agentTable is what agents ask for. What an attempt leaves behind under its
// run's name, its order among it, is asked for with ofAttempt; what only reads,
// or puts objects that nothing names yet, with ofAttemptLately: a mistake of a
// moment changes nothing there.
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

// attempts are those that ask much: what the ledger said of each a moment ago,
// and how much it has told. It is a memory of this gateway alone: one that is
// started anew, or another replica, begins with none, and so is no fence. The
// fence is the ledger, which every request asks that leaves something behind
// under the run's name.
type attempts struct {
	mu    sync.Mutex
	of    map[string]*attempt
	sweep int // how many there may be before those that have gone are looked for
}

// attempt is what is remembered of one.
type attempt struct {
	run   *tidemill.Run // which nobody changes
	asked time.Time     // when the ledger said so
	used  time.Time

	steps   float64 // of progress that it may tell now
	stepped time.Time
	logged  int64 // bytes, as far as it came by here
	chunks  []chunk
}

// chunk is one of a log, of which the newest few are remembered.
type chunk struct{ seq, bytes int }

const (
	latelyFor    = time.Second // the ledger's word is good for so long where a mistake does no harm
	attemptKept  = time.Minute // without a request
	leastAttempt = 256         // are kept without looking
	chunksKept   = 4           // an agent sends one after the other
)

// lately is an attempt's run, if the ledger spoke of it a moment ago.
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

// keep remembers an attempt, and what the ledger has just said of it.
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

// clean forgets those that have not asked for long. It is called again only
// when as many have come again as are left, so that each costs little.
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

// step takes n lines of progress, if an attempt may tell so many now.
func (s *attempts) step(name string, n int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true // it has been forgotten meanwhile, so it has not told much
	}
	a.steps = min(a.steps+now.Sub(a.stepped).Seconds()*api.StepsASec, api.MaxSteps)
	a.stepped = now
	if a.steps < float64(n) {
		return false
	}
	a.steps -= float64(n)
	return true
}

// log counts a chunk of the log, if that and those before are no more than most.
// One of the newest that comes again is counted once, and by what it has grown;
// any other counts: whoever chose the numbers could else have all counted as
// repeats.
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

// supersededBy says what became of an attempt, or of its run.
func supersededBy(b bearer) *api.Problem {
	return problem(api.Superseded, http.StatusConflict, "the attempt counts no more",
		fmt.Sprintf("attempt %s: %s; end its command and leave, nothing it says is taken any more", clip(b.name), whyNotUnderWay(b.run, b.number)))
}

// whyNotUnderWay tells from a run why one of its attempts is not the one under
// way.
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
