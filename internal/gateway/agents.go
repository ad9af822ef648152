package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/runs/rendezvous"
)

// bearer is the attempt whose token a request carries.
type bearer struct {
	name   string
	number int
	run    *tidemill.Run // state in the ledger, or a remembered one up to a second old; read-only
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
		w.Header().Set("WWW-Authenticate", authChallenge+`, error="invalid_token"`)
		return unauthenticated("the token is not that of attempt " + clipText(r.value) + "; only the agent of that attempt may use this path")
	}
	r.attempt = b
	switch {
	case needed == ofAttemptForever:
	case needed == ofAttemptForAWhile && hasJustEnded(b.run, b.number, time.Now()):
	case !isUnderWay(b.run, b.number):
		return g.supersededProblem(b)
	case !b.lately:
		g.attempts.remember(b.name, b.run, time.Now())
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
	w.Header().Set("WWW-Authenticate", authChallenge)
	return "", unauthenticated("this path needs the token of an attempt, as Authorization: Bearer …")
}

// bearerOf looks up the attempt that the path names. The result's run is nil if the ledger does not
// know the run. The answer is then the same as for a wrong token, so that a stranger cannot find
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
		if b.run = g.attempts.recentRun(name, time.Now()); b.run != nil {
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
		return nil, g.ledgerProblem(ctx, err)
	}
	return run, nil
}

// supersededProblem returns the problem of an attempt that no longer counts. It also forgets the
// attempt, so that the next request in its name asks the ledger and not the memory.
func (g *Gateway) supersededProblem(b bearer) *api.Problem {
	g.attempts.forget(b.name)
	g.metrics.refused.superseded.Inc()
	return supersededBy(b)
}

// The roles of the agents' routes. No caller has such a role. Only the token of the attempt in the
// path opens these routes, and that token opens no other routes.
const (
	ofAttempt        access.Role = "attempt"         // the ledger is asked whether the attempt is current
	ofAttemptLately  access.Role = "attempt, lately" // the ledger's answer of up to a second ago suffices
	ofAttemptForever access.Role = "attempt, ended"  // the attempt may have ended

	ofAttemptForAWhile access.Role = "attempt, just ended" // the attempt may have ended some seconds ago
)

func isOfAttempt(r access.Role) bool {
	return r == ofAttempt || r == ofAttemptLately || r == ofAttemptForever || r == ofAttemptForAWhile
}

// hasJustEnded reports whether an attempt has ended so shortly ago that its agents may still send the last lines
// of their logs. If one worker ends the attempt, the others learn that from a refused request.
func hasJustEnded(run *tidemill.Run, number int, now time.Time) bool {
	a, ok := attemptOf(run, number)
	return ok && !a.Ended.IsZero() && now.Sub(a.Ended) < api.LateLog
}

const attemptPath = "/agent/v1/attempts/{attempt}"

// agentTable lists the routes of agents. The order, and each request that stores something under
// the run's name, needs ofAttempt. A request that only reads, or stores objects that nothing refers
// to yet, needs ofAttemptLately: there the ledger's answer may be a second old.
func (g *Gateway) agentTable() []route {
	return []route{
		{method: http.MethodGet, path: attemptPath, role: ofAttempt, handle: g.agentOrder},
		{method: http.MethodGet, path: attemptPath + "/events", role: ofAttemptLately, handle: g.agentEvents},
		{method: http.MethodGet, path: attemptPath + "/files", role: ofAttemptLately, handle: g.agentFiles},
		{method: http.MethodPost, path: attemptPath + "/objects/missing", role: ofAttemptLately, handle: g.missingObjects},
		{method: http.MethodPost, path: attemptPath + "/objects", role: ofAttemptLately, handle: g.putObjects},
		{method: http.MethodPost, path: attemptPath + "/object", role: ofAttemptLately, handle: g.putObject},
		{method: http.MethodGet, path: attemptPath + "/object", role: ofAttemptLately, handle: g.getObject},
		{method: http.MethodPost, path: attemptPath + "/beat", role: ofAttempt, handle: g.agentBeat},
		{method: http.MethodPost, path: attemptPath + "/progress", role: ofAttemptLately, handle: g.agentProgress},
		{method: http.MethodPost, path: attemptPath + "/log", role: ofAttemptForAWhile, handle: g.agentLog},
		{method: http.MethodPost, path: attemptPath + "/checkpoint", role: ofAttempt, handle: g.agentCheckpoint},
		{method: http.MethodPost, path: attemptPath + "/finish", role: ofAttemptForever, handle: g.agentFinish},
		{method: http.MethodPost, path: attemptPath + "/next", role: ofAttemptForever, handle: g.agentNext},
	}
}

// attemptCache remembers the ledger's last answer about each attempt, and the amounts of progress
// and log that each attempt has sent. Each gateway process has its own cache, which is empty after
// a restart. So the cache does not fence superseded attempts. The ledger does: each request that
// stores something under the run's name asks the ledger.
type attemptCache struct {
	mu    sync.Mutex
	of    map[string]*cachedAttempt
	sweep int // number of attempts at which old ones are removed
}

// cachedAttempt is the entry of one attempt in the cache.
type cachedAttempt struct {
	run   *tidemill.Run // read-only
	asked time.Time     // time of the ledger's answer
	used  time.Time

	steps   float64 // lines of progress that the attempt may send now
	stepped time.Time
	logs    map[string]*cachedLog // by worker or server; empty for the first worker
}

// cachedLog is the amount of one log that came through this gateway.
type cachedLog struct {
	bytes  int64
	chunks []logChunk
}

// logChunk is a chunk of a log. The newest few are remembered.
type logChunk struct{ seq, bytes int }

const (
	latelyFor    = time.Second // maximum age of the ledger's answer where a mistake does no harm
	attemptKept  = time.Minute // time without a request after which an attempt is forgotten
	leastAttempt = 256         // number of attempts up to which none is removed
	chunksKept   = 4           // number of remembered chunks; an agent sends one after the other
)

// recentRun returns an attempt's run if the ledger's answer about it is at most a second old.
func (s *attemptCache) recentRun(name string, now time.Time) *tidemill.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil || now.Sub(a.asked) > latelyFor {
		return nil
	}
	a.used = now
	return a.run
}

// remember remembers the ledger's answer about an attempt.
func (s *attemptCache) remember(name string, run *tidemill.Run, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of, s.sweep = map[string]*cachedAttempt{}, leastAttempt
	}
	a := s.of[name]
	if a == nil {
		a = &cachedAttempt{steps: api.MaxSteps, stepped: now}
		s.of[name] = a
	}
	a.run, a.asked, a.used = run, now, now
	if len(s.of) > s.sweep {
		s.forgetOld(now)
	}
}

// forgetOld forgets attempts without a recent request. The attempts are searched only when their
// number has doubled, so that each attempt costs little.
func (s *attemptCache) forgetOld(now time.Time) {
	for name, a := range s.of {
		if now.Sub(a.used) > attemptKept {
			delete(s.of, name)
		}
	}
	s.sweep = max(2*len(s.of), leastAttempt)
}

func (s *attemptCache) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// countProgress counts n lines of progress, and reports whether the attempt may send n lines now.
func (s *attemptCache) countProgress(name string, n int, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true // the attempt was forgotten meanwhile, so it has not sent much
	}
	a.steps = min(a.steps+now.Sub(a.stepped).Seconds()*api.StepsASec, api.MaxSteps)
	a.stepped = now
	if a.steps < float64(n) {
		return false
	}
	a.steps -= float64(n)
	return true
}

// countLogChunk counts a chunk of the log of a worker or server, unless the log would then be larger than most bytes. If
// one of the newest chunks comes again, only its growth counts. Any other chunk counts in full:
// otherwise an agent could reuse numbers to have all its chunks counted as repeats.
func (s *attemptCache) countLogChunk(name, part string, seq, bytes int, most int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.of[name]
	if a == nil {
		return true
	}
	l := a.logs[part]
	if l == nil {
		l = &cachedLog{}
		if a.logs == nil {
			a.logs = map[string]*cachedLog{}
		}
		a.logs[part] = l
	}
	was := 0
	at := slices.IndexFunc(l.chunks, func(c logChunk) bool { return c.seq == seq })
	if at >= 0 {
		was = l.chunks[at].bytes
	}
	more := int64(max(bytes-was, 0))
	if more > 0 && l.bytes+more > most {
		return false
	}
	if at >= 0 {
		l.chunks = slices.Delete(l.chunks, at, at+1)
	} else if len(l.chunks) == chunksKept {
		l.chunks = slices.Delete(l.chunks, 0, 1)
	}
	l.bytes, l.chunks = l.bytes+more, append(l.chunks, logChunk{seq, max(bytes, was)})
	return true
}

// The problems of attempts.

// supersededBy is the problem of an attempt that no longer counts, with the reason.
func supersededBy(b bearer) *api.Problem {
	return problem(api.Superseded, http.StatusConflict, "the attempt no longer counts",
		fmt.Sprintf("attempt %s: %s; stop its command and exit: none of its requests is accepted any more", clipText(b.name), whyNotUnderWay(b.run, b.number)))
}

// unsignedPlan is the problem of an attempt whose plan no controller of this version has made, for
// example during an upgrade. The attempt counts as lost, and the next one gets a plan that is made
// again.
func unsignedPlan(b bearer) *api.Problem {
	return problem(api.Superseded, http.StatusConflict, "the attempt no longer counts",
		fmt.Sprintf("attempt %s: its plan was not made with the run secret of this install; stop its command and exit: another attempt may follow", clipText(b.name)))
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
		return fmt.Sprintf("%s, and attempt %d is running", text, now.Number)
	}
	return fmt.Sprintf("%s, and its run is %s", text, run.State)
}

func tooManySteps() *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at the same time",
		fmt.Sprintf("an attempt may send %d lines of progress a second, and %d at once: keep the newest and send it again later", api.StepsASec, api.MaxSteps))
}

// beatSeconds is the interval between beats. Five beats fit into the silence after which an
// agent counts as lost.
const beatSeconds = 2

// agentOrder answers with an attempt's order: its plan, checkpoint and champion.
func (g *Gateway) agentOrder(w http.ResponseWriter, r *request) *api.Problem {
	run, number := r.attempt.run, r.attempt.number
	o := api.Order{Run: run.ID, Recipe: run.Recipe, Key: run.Key, Attempt: number,
		Causes: run.Causes, Event: run.Event, BeatSeconds: beatSeconds}
	if !g.opt.Tokens.Signed(run) {
		g.log.Warn("gateway: the plan of a run was not made with the run secret; its attempt gets no order", "recipe", run.Recipe, "key", run.Key, "run", run.ID)
		return unsignedPlan(r.attempt)
	}
	if p := g.orderedPlan(r, &o.Plan); p != nil {
		return p
	}
	var p *api.Problem
	if o.Checkpoint, p = g.checkpointFor(r.Context(), run.ID, number); p != nil {
		return p
	}
	if o.Champion, p = g.championFor(r.Context(), run.ID, o.Plan.Champion); p != nil {
		return p
	}
	g.hasBegun(r)
	writeJSON(w, http.StatusOK, o)
	return nil
}

// championFor returns the champion that an attempt measures next to its own model. It is the
// champion at the start of the run, so that all attempts of the run measure the same champion.
func (g *Gateway) championFor(ctx context.Context, run string, c *tidemill.Champion) (*api.TreeRef, *api.Problem) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.TreeRef(ctx, c.Artifact)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrCorrupt): // the attempt runs without a champion, as a run that begins now would
		g.log.Warn("gateway: the champion's files are lost; the attempt measures no champion", "run", run, "version", c.Version, "reason", err)
		return nil, nil
	case err != nil:
		return nil, g.storeFault(fmt.Sprintf("look up version %d, which the run measures", c.Version), err)
	}
	return &t, nil
}

// orderedPlan reads the plan of the attempt's run.
func (g *Gateway) orderedPlan(r *request, to *tidemill.Plan) *api.Problem {
	if err := json.Unmarshal(r.attempt.run.Plan, to); err != nil {
		g.log.Error("gateway: reading the plan of a run failed; its attempt gets a 500", "run", r.attempt.run.ID, "reason", err)
		return internalFault()
	}
	return nil
}

// checkpointFor returns the checkpoint that an attempt resumes from. A first attempt has
// none, and most runs have no second attempt, so the store is not asked.
func (g *Gateway) checkpointFor(ctx context.Context, run string, number int) (*api.TreeRef, *api.Problem) {
	if number == 1 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	t, err := g.opt.Store.Checkpoint(ctx, run)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case errors.Is(err, store.ErrCorrupt):
		g.log.Warn("gateway: the checkpoint of a run is lost; its attempt starts from the beginning", "run", run, "reason", err)
		return nil, nil
	case err != nil:
		return nil, g.storeFault("read the checkpoint of run "+run, err)
	}
	return &t, nil
}

const linesType = "application/x-ndjson"

// agentFiles lists the files of a tree. The request names the tree by its digest; a caller
// that knows the digest may have the tree.
func (g *Gateway) agentFiles(w http.ResponseWriter, r *request) *api.Problem {
	q, p := r.parseQuery([]string{"tree"})
	if p != nil {
		return p
	}
	tree := q.Get("tree")
	if badDigest(tree) != nil {
		return badParameter("tree", "give the tree of the order, or of one of its inputs")
	}
	ctx := r.Context()
	o := g.newOutpour(w, linesType)
	err := g.opt.Store.Walk(ctx, tree, "", "", func(f api.File) error {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		return o.writeLine(ctx, line)
	})
	switch {
	case errors.Is(err, store.ErrCorrupt): // no later try succeeds, and the attempt would hold its GPUs until its deadline
		g.log.Warn("gateway: a tree is corrupt in the store; an attempt cannot read it", "run", r.attempt.run.ID, "reason", err)
		p = unknownData(err.Error() + ": put its files again")
	case err != nil:
		p = g.storeFault("list tree "+tree, err)
	}
	return o.finish(ctx, err, p)
}

// agentEvents answers with the events that requested the run, oldest first, one per line.
// They are read from the facts whose offsets the ledger keeps. If those facts are gone, the
// answer is the newest event, which the ledger keeps itself.
func (g *Gateway) agentEvents(w http.ResponseWriter, r *request) *api.Problem {
	ctx, run := r.Context(), r.attempt.run
	o := g.newOutpour(w, linesType)
	found, err := g.eachEvent(ctx, run, func(event []byte) error { return o.writeLine(ctx, event) })
	if err != nil {
		return o.finish(ctx, err, g.noEvents(ctx, run, err))
	}
	if found == 0 && run.Event != nil {
		err = o.writeLine(ctx, oneLineOf(run.Event))
	}
	return o.finish(ctx, err, nil)
}

func (g *Gateway) noEvents(ctx context.Context, run *tidemill.Run, err error) *api.Problem {
	if ctx.Err() == nil {
		g.log.Warn("gateway: reading the events of a run failed; the request fails", "run", run.ID, "reason", err)
	}
	return unavailable("the causes of the run cannot be read now; try again later")
}

// eachEvent calls fn with each event that requested a run and returns their number. It holds
// at most one read of Kafka in memory.
func (g *Gateway) eachEvent(ctx context.Context, run *tidemill.Run, fn func(event []byte) error) (found int, err error) {
	err = g.factsAt(ctx, run.Partition, run.Asked, func(in *broker.Incoming) error {
		var d tidemill.RunRequested
		if in.Err != nil || in.Type != tidemill.TypeRunRequested || in.Subject != run.Key || json.Unmarshal(in.Data, &d) != nil {
			return nil // not the fact that the ledger has read: the log was created again
		}
		for _, e := range d.Events {
			found++
			if err := fn(oneLineOf(e)); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// oneLineOf returns JSON without white space between its parts.
func oneLineOf(text []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return bytes.ReplaceAll(text, []byte("\n"), []byte(" "))
	}
	return b.Bytes()
}

// agentBeat records that an agent is alive and answers whether the agent must end. If several
// workers share an attempt, the beats of the first worker are those of the attempt.
func (g *Gateway) agentBeat(w http.ResponseWriter, r *request) *api.Problem {
	hangUp(w, r) // the request needs no body
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	one, p := g.oneOf(r)
	if p != nil {
		return p
	}
	at := time.Now()
	if one.word.Over && one.otherPart() != "" {
		at = time.Time{} // its agent exits, so its silence is no sign that its node is lost
	}
	if err := g.opt.Ledger.Beat(ctx, r.attempt.run.ID, r.attempt.number, one.otherPart(), at); err != nil {
		return g.ledgerProblem(ctx, err)
	}
	b := api.Beat{Cancel: whyCancelled(r.attempt.run)}
	if p := g.addMemberStates(ctx, r, &one, &b); p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, b)
	return nil
}

// whyCancelled returns the reason why a run must end; empty if the run need not end. A cancellation
// may have no reason.
func whyCancelled(run *tidemill.Run) string {
	switch c := run.Cancel; {
	case c == nil:
		return ""
	case c.Reason != "":
		return c.Reason
	case c.By != "":
		return "cancelled by " + c.By
	}
	return "cancelled"
}

// member is the worker or server of a shared attempt that sent a request.
type member struct {
	word rendezvous.Word
	many int // number of workers and servers of the attempt; 0 if it is not shared
}

// otherPart returns the name of the member; empty if the member speaks for the whole attempt.
func (o *member) otherPart() string {
	if o.word.Part == firstWorker {
		return ""
	}
	return o.word.Part
}

const firstWorker = "w0"

// isPart reports whether a text names a worker or server of an attempt.
func isPart(text string) bool {
	number, ok := strings.CutPrefix(text, "ps")
	if !ok {
		number, ok = strings.CutPrefix(text, "w")
	}
	n, err := strconv.Atoi(number)
	return ok && err == nil && n >= 0 && n < mostParts && strconv.Itoa(n) == number
}

const mostParts = 100_000

// oneOf reads the member from the query and checks it against the run's plan.
func (g *Gateway) oneOf(r *request) (o member, p *api.Problem) {
	q, p := r.parseQuery([]string{"part", "index", "ready", "over"})
	if p != nil || !q.Has("part") {
		return o, p
	}
	var plan tidemill.Plan
	if p := g.orderedPlan(r, &plan); p != nil {
		return o, p
	}
	workers, servers := max(1, plan.Workers), 0
	if plan.Servers != nil {
		servers = plan.Servers.Count
	}
	index, err := strconv.Atoi(orElse(q.Get("index"), "0"))
	if err != nil {
		return o, badParameter("index", fmt.Sprintf("%q is not a number", clipText(q.Get("index"))))
	}
	most := map[string]int{"worker": workers, "server": servers}[q.Get("part")]
	if index < 0 || index >= most {
		return o, badParameter("part", fmt.Sprintf("the attempt has %d workers and %d servers, and no %s %d", workers, servers, clipText(q.Get("part")), index))
	}
	name := map[string]string{"worker": "w", "server": "ps"}[q.Get("part")]
	return member{many: workers + servers, word: rendezvous.Word{Part: name + strconv.Itoa(index), Ready: q.Get("ready") == "true", Over: q.Get("over") == "true"}}, nil
}

// addMemberStates adds the state of the other members to a beat's answer.
func (g *Gateway) addMemberStates(ctx context.Context, r *request, o *member, to *api.Beat) *api.Problem {
	if o.many == 0 {
		return nil
	}
	if g.opt.Muster == nil {
		return problem(api.Unavailable, http.StatusServiceUnavailable, "this gateway has no rendezvous",
			"the workers of an attempt wait for each other with Redis, and this gateway has none: start it with --redis")
	}
	h, err := g.opt.Muster.Say(ctx, r.attempt.name, o.many, o.word)
	if err != nil {
		return g.ledgerProblem(ctx, err)
	}
	to.All, to.End, to.Alone = h.All, h.End, h.Alone
	return nil
}
