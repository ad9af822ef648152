package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/oip/rest"
)

// scorerLook holds the state of the scorers. After a failed lookup a number is unknown and never
// shown as zero.
type scorerLook struct {
	known     bool // processes is known
	processes []status.Process
	streams   []broker.StreamInfo // nil if unknown
}

// listScorers answers with all scorers of the config.
func (g *Gateway) listScorers(w http.ResponseWriter, r *request) *api.Problem {
	look := g.lookAtScorers(r.Context())
	all := api.Scorers{Scorers: []api.Scorer{}}
	if look.known {
		all.Processes = new(len(look.processes))
	}
	for _, c := range g.opt.Config().Scorers {
		s, _ := look.stateOf(&c, r.caller.AllKeys(access.Read))
		all.Scorers = append(all.Scorers, s)
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

// showScorer answers with one scorer. Models are named after keys, so a caller with limited
// keys gets no names of models.
func (g *Gateway) showScorer(w http.ResponseWriter, r *request) *api.Problem {
	c, ok := g.opt.Config().Scorer(r.value)
	if !ok {
		return g.unknownScorer(r.value)
	}
	all := r.caller.AllKeys(access.Read)
	look := g.lookAtScorers(r.Context())
	scorer, whole := look.stateOf(&c, all)
	shown := api.ScorerShown{Scorer: scorer, Swaps: []api.ScorerSwap{}, Versions: []api.ScorerVersion{}, Running: look.running(c.Name)}
	if all {
		for _, s := range whole.Swaps {
			shown.Swaps = append(shown.Swaps, api.ScorerSwap(s))
		}
		shown.Versions = versionsOf(whole.Swaps)
	}
	writeJSON(w, http.StatusOK, shown)
	return nil
}

// lookAtScorers reads the state of the scorers. Each lookup has a short timeout, because each part
// of the answer may be missing.
func (g *Gateway) lookAtScorers(ctx context.Context) *scorerLook {
	look := &scorerLook{}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.lookupTime())
	defer cancel()
	processes, err := g.opt.Scorers.Read(ctx)
	switch {
	case err == nil:
		look.known, look.processes = true, processes
	case !errors.Is(err, status.ErrNoRedis):
		g.log.Debug("gateway: reading the numbers of scorers failed; the answer has none", "reason", err)
	}
	if look.streams, err = g.survey.current(ctx); err != nil {
		g.log.Debug("gateway: reading the lag of scorers failed; the answer has none", "reason", err)
	}
	return look
}

// stateOf returns the state of a scorer, and the sum of its processes' numbers.
func (l *scorerLook) stateOf(c *config.Scorer, all bool) (api.Scorer, status.Scorer) {
	shown := scorerOf(c)
	shown.Lag = l.groupLag(c)
	whole, n := status.Of(l.processes, c.Name)
	if !l.known {
		return shown, whole
	}
	shown.Processes = &n
	if n == 0 {
		return shown, whole
	}
	shown.Numbers = new(numbersOf(&whole))
	shown.Numbers.HitRate = l.hitRate(c.Name)
	if shown.Lag == nil {
		shown.Lag = &whole.Lag
	}
	if all {
		shown.LastError, shown.LastErrorAt = whole.LastError, timeOrNull(whole.LastErrorAt)
	}
	return shown, whole
}

// groupLag returns the lag of the scorer's group in Kafka, including partitions that no process
// reads. The lag is nil if the group has committed nothing yet.
func (l *scorerLook) groupLag(c *config.Scorer) *int64 {
	for i := range l.streams {
		if l.streams[i].Name != c.From {
			continue
		}
		for _, g := range l.streams[i].Groups {
			if g.Group == tidemill.ScorerGroup(c.Name) {
				return &g.Lag
			}
		}
	}
	return nil
}

// hitRate returns the share of model uses that found the model in memory, over all processes
// of a scorer.
func (l *scorerLook) hitRate(scorer string) float64 {
	var hits, uses uint64
	for _, p := range l.processes {
		if slices.ContainsFunc(p.Scorers, func(s status.Scorer) bool { return s.Name == scorer }) {
			hits, uses = hits+p.Cache.Hits, uses+p.Cache.Hits+p.Cache.Misses
		}
	}
	return share(hits, uses)
}

func share(of, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(of) / float64(all)
}

func (l *scorerLook) running(scorer string) []api.ScorerProcess {
	all := []api.ScorerProcess{}
	for _, p := range l.processes {
		for i := range p.Scorers {
			s := &p.Scorers[i]
			if s.Name != scorer {
				continue
			}
			one := api.ScorerProcess{ID: p.ID, Host: p.Host, Began: p.Began, Lag: s.Lag, Numbers: numbersOf(s), Loaded: p.Cache.Models,
				Bytes: p.Cache.Bytes, Budget: p.Cache.Budget, Evicted: p.Cache.Evicted}
			one.Numbers.HitRate = share(p.Cache.Hits, p.Cache.Hits+p.Cache.Misses)
			all = append(all, one)
		}
	}
	return all
}

// versionsOf returns the current version of each model among the swaps, which are sorted
// newest first.
func versionsOf(swaps []status.Swap) []api.ScorerVersion {
	all := []api.ScorerVersion{}
	for _, s := range swaps {
		i := slices.IndexFunc(all, func(v api.ScorerVersion) bool { return v.Model == s.Model })
		switch {
		case i < 0:
			all = append(all, api.ScorerVersion{Model: s.Model, Version: s.Version, Since: s.At})
		case all[i].Version == s.Version: // another partition had the version earlier
			all[i].Since = s.At
		}
	}
	return all
}

func scorerOf(c *config.Scorer) api.Scorer {
	s := api.Scorer{Name: c.Name, From: c.From, To: c.To, Types: append([]string{}, c.Types...), Key: c.Key, Model: c.Model, Map: map[string]string{},
		NoModel: string(c.NoModel.Action), Instead: c.NoModel.Model, Delivery: "exactly-once", Engine: c.Engine}
	if c.AtLeastOnce {
		s.Delivery = "at-least-once"
	}
	if l := c.Labels; l != nil {
		s.Labels = &api.ScorerLabels{From: l.From, Types: append([]string{}, l.Types...), ID: l.ID, Source: l.Source, Place: l.Place, Field: l.Field,
			LabelField: l.LabelField, Truth: l.Truth, WaitSeconds: l.Wait.Seconds(), Missing: l.Missing, Group: l.Group}
	}
	for _, m := range c.Map {
		s.Map[m.Input] = m.Path
		if m.Default == "" {
			continue
		}
		if s.Defaults == nil {
			s.Defaults = map[string]json.RawMessage{}
		}
		s.Defaults[m.Input] = json.RawMessage(m.Default)
		if !json.Valid(s.Defaults[m.Input]) { // JSON cannot express NaN
			s.Defaults[m.Input] = json.RawMessage(strconv.Quote(m.Default))
		}
	}
	return s
}

func numbersOf(s *status.Scorer) api.ScorerNumbers {
	return api.ScorerNumbers{Events: s.Events, Scored: s.Scored, Passed: s.Passed, Dropped: s.Dropped, DeadLettered: s.DeadLettered,
		Skipped: s.Skipped, Held: s.Held, Aborted: s.Aborted, Rate: s.Rate, P50Seconds: toSeconds(s.P50), P99Seconds: toSeconds(s.P99), Models: s.Models}
}

// toSeconds converts a duration to seconds and rounds it to microseconds, because no measurement is
// more exact.
func toSeconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }

// Rescore scores a part of a scorer's stream again, for as long as one answer may take, and reports
// its progress. If ask has both an id and a stream, it continues the rescore of that id, or begins it.
// An error that wraps Unanswered means that the rescore is impossible.
type Rescore func(ctx context.Context, c config.Scorer, ask api.RescoreAsk, ranges []tidemill.Range) (api.Rescored, error)

// rescore begins or continues a rescore. One request does one part, and the caller repeats the
// request until nothing is left. A later request can continue a rescore whose caller has stopped.
// A new rescore that is asked for again with the same Idempotency-Key is the same one.
func (g *Gateway) rescore(w http.ResponseWriter, r *request) *api.Problem {
	c, ok := g.opt.Config().Scorer(r.value)
	if !ok {
		return g.unknownScorer(r.value)
	}
	if !r.caller.AllKeys(access.Operate) {
		return forbidden("a scorer is for all keys, and you may operate only on some: use a token for all keys")
	}
	var ask api.RescoreAsk
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	id := ask.Resume
	if key := r.Header.Get(api.HeaderIdempotencyKey); id == "" && key != "" {
		id = ask.ID(c.Name, key)
	}
	ranges, since, p := g.rescoreRanges(r.Context(), &c, &ask)
	if p != nil {
		return p
	}
	ask.Resume = id
	if g.opt.Rescore == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	done, err := g.opt.Rescore(ctx, c, ask, ranges)
	if err != nil {
		return g.scoreProblem(r.Context(), c.Name, err)
	}
	if !since.IsZero() {
		done.Since = &since
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// rescoreRanges converts the times and offsets in a request for a new rescore into ranges of
// offsets. since is as in [api.Rescored], and zero if no event is deleted.
func (g *Gateway) rescoreRanges(ctx context.Context, c *config.Scorer, ask *api.RescoreAsk) (ranges []tidemill.Range, since time.Time, p *api.Problem) {
	if ask.Resume != "" {
		if ask.From+ask.To+ask.Version+ask.ToStream != "" {
			return nil, since, badParameter("resume", "it continues with the settings of the first request: leave out the others")
		}
		return nil, since, nil
	}
	if _, known := g.opt.Config().Stream(ask.ToStream); !known {
		return nil, since, badParameter("toStream", "give a stream of the config for the answers")
	}
	ask.Version = orElse(ask.Version, tidemill.WhichChampion)
	all, p := g.rangesOf(ctx, []string{c.From}, api.ReplayAsk{From: ask.From, To: ask.To})
	if p != nil {
		return nil, since, p
	}
	since, err := g.keptSince(ctx, c.From, ask.From)
	if err != nil {
		return nil, since, g.kafkaProblem(ctx, fmt.Errorf("find the first events of stream %s: %w", c.From, err))
	}
	return all[c.From], since, nil
}

// keptSince returns the latest time of the first events of all partitions where retention may have deleted events from the
// given place on; zero if there is none.
func (g *Gateway) keptSince(ctx context.Context, stream, from string) (since time.Time, err error) {
	start, err := follow.ParseFrom(from, time.Now())
	if err != nil || start == broker.Earliest() {
		return since, err
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	at, err := g.opt.Broker.Places(ctx, stream, start)
	if err != nil {
		return since, err
	}
	starts, err := g.opt.Broker.Places(ctx, stream, broker.Earliest())
	for i := range min(len(at), len(starts)) {
		if starts[i].Offset == 0 || at[i].Offset > starts[i].Offset || start == broker.AtOffset(starts[i].Offset) {
			continue // all of the range is there
		}
		if _, err := g.opt.Broker.Read(ctx, starts[i], 1, func(e *broker.Incoming) bool {
			if e.Time.After(since) {
				since = e.Time.UTC()
			}
			return false
		}); err != nil {
			return since, err
		}
	}
	return since, err
}

// Unanswered is the error of an event that a champion cannot score, even in a retry.
type Unanswered struct {
	NoChampion bool // the key has no champion and no substitute; otherwise the event cannot be scored
	Err        error
}

// Error returns the text of Err.
func (u *Unanswered) Error() string { return u.Err.Error() }

// Unwrap returns Err.
func (u *Unanswered) Unwrap() error { return u.Err }

// scoreOnce answers with the champion's scores for one event, and publishes nothing.
func (g *Gateway) scoreOnce(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"key"})
	if p != nil {
		return p
	}
	name := r.value
	c, ok := g.opt.Config().Scorer(name)
	if !ok {
		return g.unknownScorer(name)
	}
	v, p := g.readScored(r)
	if p != nil {
		return p
	}
	if p := replaceKey(r.caller, &c, v, values); p != nil {
		return p
	}
	if g.opt.Score == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(g.withBudget(r), g.opt.Limits.Ack)
	defer cancel()
	done, err := g.opt.Score(ctx, c, v)
	if err != nil {
		return g.scoreProblem(r.Context(), name, err)
	}
	done.Scorer = name
	writeJSON(w, http.StatusOK, done)
	return nil
}

// readScored reads an event in its mode, as for publishing. JSON without the attributes of an event is
// taken as the data of an event.
func (g *Gateway) readScored(r *request) (*broker.View, *api.Problem) {
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return nil, invalidEvent(err)
	}
	body, p := g.readBody(r, g.opt.Limits.maxJSON(), g.eventTooLarge)
	if p != nil {
		return nil, p
	}
	v := &broker.View{}
	switch {
	case mode == cehttp.Structured:
		err = cehttp.ReadStructured(r.Header, body, v)
	case mode == cehttp.Batch:
		return nil, invalidRequest("a batch of events cannot be scored in one request; send one event per request")
	case r.Header.Get("Ce-Specversion") != "":
		err = cehttp.ReadBinary(r.Header, body, v)
	case isWholeEvent(body):
		if err = broker.UnmarshalStructured(body, v); err == nil {
			err = v.Validate()
		}
	default:
		*v = broker.View{ID: tidemill.ID("score", r.callerName(), time.Now().String()), Source: "/score", Type: "score", DataContentType: "application/json", Data: body}
	}
	if err != nil {
		return nil, invalidEvent(err)
	}
	return v, nil
}

// isWholeEvent reports whether JSON is an event with its attributes, and not only its data.
func isWholeEvent(body []byte) bool {
	var e struct {
		SpecVersion string `json:"specversion"`
	}
	return bytes.Contains(body, []byte(`"specversion"`)) && json.Unmarshal(body, &e) == nil && e.SpecVersion != ""
}

// replaceKey replaces the event's key by the key in the query. A caller with limited keys must give
// that key, because the caller can write any key into the event.
func replaceKey(caller *access.Caller, c *config.Scorer, v *broker.View, values url.Values) *api.Problem {
	key := values.Get("key")
	if key != "" && c.Key == config.KeyNone {
		return badParameter("key", "the scorer has none (key: none); leave it out")
	}
	if key != "" {
		c.Key, v.Subject = config.KeySubject, key
	}
	switch {
	case caller.AllKeys(access.Read):
	case c.Key == config.KeyNone:
		return forbidden("you may see only some keys, and this scorer has one model for all keys")
	case key == "":
		return badParameter("key", "give it, because you may see only some keys")
	case !caller.MayTouch(access.Read, key):
		return forbidden(fmt.Sprintf("you may not see the key %q", clipText(key)))
	}
	return nil
}

// Inference answers a request of the Open Inference Protocol. The body has been read.
type Inference func(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte)

// The prefixes of the paths of models in the Open Inference Protocol. A model's name has slashes, so more
// than one segment may follow.
const (
	inferencePath  = "/v2/models/"
	repositoryPath = "/v2/repository/models/"
)

// inferenceTable lists the routes of the Open Inference Protocol. Its probes need no token. A
// caller with the role read may request predictions of models, as of scorers.
func (g *Gateway) inferenceTable() []route {
	return []route{
		{method: http.MethodGet, path: "/v2", role: access.Read, handle: g.serveInference},
		{method: http.MethodGet, path: "/v2/health/live", role: anyone, handle: g.serveInference},
		{method: http.MethodGet, path: "/v2/health/ready", role: anyone, handle: g.serveInference},
		{method: http.MethodGet, path: inferencePath + "{path}", role: access.Read, handle: g.askModel},
		{method: http.MethodPost, path: inferencePath + "{path}", role: access.Read, handle: g.askModel},
		{method: http.MethodPost, path: "/v2/repository/index", role: access.Read, handle: g.askModel},
		{method: http.MethodPost, path: repositoryPath + "{path}", role: access.Operate, handle: g.askModel},
	}
}

// askModel admits only callers that have the role for all keys, because a model's name does not show its key.
func (g *Gateway) askModel(w http.ResponseWriter, r *request) *api.Problem {
	role := access.Read
	if strings.HasPrefix(r.URL.Path, repositoryPath) {
		role = access.Operate
	}
	if !r.caller.AllKeys(role) {
		return forbiddenModel(role)
	}
	return g.serveInference(w, r)
}

// forbiddenModel is the problem of a caller that has a role only for some keys.
func forbiddenModel(role access.Role) *api.Problem {
	return forbidden(fmt.Sprintf("you have the role %s only for some keys, and this request names a model: POST /api/v1/scorers/{scorer}/score takes a key", role))
}

// runBudget takes the memory of a model's run from the room of the requests under way.
type runBudget struct {
	g *Gateway
	r *request
}

// runGarbage is how much of the room a byte of a run takes: the collector lets as much garbage
// accumulate as there is live memory.
const runGarbage = 2

// Take takes bytes until the request is answered.
func (b *runBudget) Take(bytes int64) error {
	p := b.g.chargeMemory(b.r, int(runGarbage*bytes))
	if p == nil {
		return nil
	}
	return fmt.Errorf("%w: it needs %d more bytes, and %s; ask for fewer rows at once, or again later", infer.ErrNoRoom, bytes, p.Detail)
}

// withBudget returns the request's context, with which a model's run takes its memory from the room of
// the requests under way before it makes a table.
func (g *Gateway) withBudget(r *request) context.Context {
	return infer.WithBudget(r.Context(), &runBudget{g, r})
}

// serveInference passes the request to the handler of the protocol.
func (g *Gateway) serveInference(w http.ResponseWriter, r *request) *api.Problem {
	if g.opt.Inference == nil {
		return noScoring()
	}
	ctx, cancel := context.WithTimeout(g.withBudget(r), g.opt.Limits.Ack)
	defer cancel()
	var body []byte
	if r.Method == http.MethodPost {
		var p *api.Problem
		if body, p = g.readBody(r, g.opt.Limits.Batch, rowsTooLarge); p != nil {
			return p
		}
	}
	g.opt.Inference(ctx, w, r.Request, body)
	return nil
}

func rowsTooLarge() *api.Problem { return tooLarge("send fewer rows per request") }

// inferenceFailure is a refusal in the form of the Open Inference Protocol, whose clients read no other.
type inferenceFailure struct {
	Error string `json:"error"`
}

// writeRefusal writes a problem, in the form that clients of the path read.
func writeRefusal(w http.ResponseWriter, path string, p *api.Problem) {
	if !rest.Within(path) {
		writeProblem(w, p)
		return
	}
	setRetryAfter(w, p.Status)
	writeJSON(w, p.Status, inferenceFailure{p.Detail})
}
