package gateway

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/keys"
)

// publish stores events. Each event goes to the stream that claims its type.
func (g *Gateway) publish(w http.ResponseWriter, r *request) *api.Problem {
	return g.readEvents(w, r, g.currentPlan(), nil)
}

// publishTo stores events on the stream that the path names.
func (g *Gateway) publishTo(w http.ResponseWriter, r *request) *api.Problem {
	p := g.currentPlan()
	to := p.streams[r.value]
	switch {
	case to != nil:
		return g.readEvents(w, r, p, to)
	case ownStream(r.value):
		return reservedStream(r.value)
	}
	return unknownStream(r.value, p.names)
}

// readEvents reads the events in the request's mode. If to is nil, the stream of each event depends
// on its type.
func (g *Gateway) readEvents(w http.ResponseWriter, r *request, p *publishPlan, to *publishTarget) *api.Problem {
	defer g.startSpan(r).End()
	mode, err := cehttp.ModeOf(r.Header)
	if err != nil {
		return invalidEvent(err)
	}
	if mode == cehttp.Batch {
		return g.postBatch(w, r, p, to)
	}
	limit, read := g.opt.Limits.Event, cehttp.ReadBinary
	if mode == cehttp.Structured {
		limit, read = g.opt.Limits.maxJSON(), cehttp.ReadStructured
	}
	body, problem := g.readBody(r, limit, g.eventTooLarge)
	if problem != nil {
		return problem
	}
	i := r.post.addItem(g)
	i.judge(r, p, to, read(r.Header, body, i.view))
	return g.postOne(w, r, i)
}

// startSpan begins the gateway's span; no span begins while traces are off. r.trace is then the
// parent for events that bring no trace.
func (g *Gateway) startSpan(r *request) (span trace.Span) {
	r.trace = r.Context()
	if r.Header[headerTraceParent] != nil {
		r.trace = telemetry.ContextOfRequest(r.trace, r.Header)
	}
	r.trace, span = g.tracer.Start(r.trace, "publish", g.ofServer)
	return span
}

const headerTraceParent = "Traceparent" // canonical form of net/http

// postOne stores a single event and answers.
func (g *Gateway) postOne(w http.ResponseWriter, r *request, i *item) *api.Problem {
	g.storeEvents(r)
	problem, repeated := i.eventOutcome()
	if problem != nil {
		return problem
	}
	if h := w.Header(); repeated {
		h.Set(api.HeaderRepeated, "true")
	} else {
		h[api.HeaderPosition] = i.positionHeader()
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// positionHeader returns the value of the header with the event's position.
func (i *item) positionHeader() []string {
	b := append(i.text[:0], i.receipt.Stream...)
	b = strconv.AppendInt(append(b, '/'), int64(i.receipt.Partition), 10)
	b = strconv.AppendInt(append(b, '/'), i.receipt.Offset, 10)
	i.text, i.header[0] = b, string(b)
	return i.header[:]
}

// judge decides whether an event may be stored, and on which stream. It sets either i.to or
// i.problem. err is the reader's error.
func (i *item) judge(r *request, p *publishPlan, to *publishTarget, err error) {
	i.to = to
	i.problem = i.fault(r, p, err)
	if i.problem != nil {
		i.g.countRefused(i.to)
		i.g.noteRefusal(r, access.Publish, "publish", i.problem)
	}
}

func (i *item) fault(r *request, p *publishPlan, err error) *api.Problem {
	v := i.view
	if err != nil {
		return invalidEvent(err)
	}
	if err := tidemill.Reserved(v.Type, v.Source); err != nil {
		return reservedEvent(v, err)
	}
	if i.to == nil {
		i.to = p.streamFor(v.Type)
	}
	if sizeOf(v) > int64(i.g.opt.Limits.Event) {
		return i.g.eventTooLarge()
	}
	if p := setAuthID(v, r.caller.Name()); p != nil {
		return p
	}
	if err := p.mayPublish(r.caller, i.to.stream, v); err != nil {
		return forbiddenEvent(err)
	}
	if !r.caller.AllKeys(access.Operate) && p.takers.Ends(i.to.stream, v) {
		if p := i.g.mayEnd(r, v); p != nil {
			return p
		}
	}
	telemetry.Remember(r.trace, v)
	i.size = sizeOf(v) // size with the added attributes
	return nil
}

// mayPublish returns nil if a caller may publish an event to a stream.
func (p *publishPlan) mayPublish(c *access.Caller, stream string, v *broker.View) error {
	var taken []keys.Taken
	if c.KeyLimits(access.Publish) {
		taken = p.takers.Taken(stream, v)
	}
	return c.MayPublish(v, taken)
}

// mayEnd refuses an event that ends a key unless the caller may forget the key.
func (g *Gateway) mayEnd(r *request, v *broker.View) *api.Problem {
	if err := r.caller.MayEnd(v); err != nil {
		return forbiddenEvent(err)
	}
	return g.refuseRecipe(r, v.Subject)
}

// The answer to a small batch may be large, for example for ten thousand empty objects. So the
// request is charged for the state of each event, in steps.
const (
	batchItem   = 1 << 10
	itemsCharge = 64
)

// postBatch stores the events of a batch and answers for each. If an event is refused, the others
// are still stored.
func (g *Gateway) postBatch(w http.ResponseWriter, r *request, p *publishPlan, to *publishTarget) *api.Problem {
	body, problem := g.readBody(r, g.opt.Limits.Batch, g.batchTooLarge)
	if problem != nil {
		return problem
	}
	err := cehttp.ReadBatch(r.Header, body, g.opt.Limits.BatchEvents, func(n int, v *broker.View, err error) {
		if n%itemsCharge == 0 && problem == nil {
			problem = g.chargeMemory(r, itemsCharge*batchItem)
		}
		if problem == nil {
			i := r.post.addItem(g)
			i.view = v
			i.judge(r, p, to, err)
		}
	})
	switch {
	case problem != nil:
		return problem
	case errors.Is(err, broker.ErrTooMany):
		return tooMany(g.opt.Limits.BatchEvents)
	case err != nil:
		return invalidEvent(err)
	}
	g.storeEvents(r)
	text, stored := appendAnswers(make([]byte, 0, answerRoom*(1+len(r.post.all()))), r.post.all())
	if !stored {
		return refusedOf(r.post.all())
	}
	writeText(w, http.StatusAccepted, jsonType, text)
	return nil
}

// refusedOf is the problem of a batch with refused events. The status says whether a retry of the
// batch can help.
func refusedOf(items []*item) *api.Problem {
	refused, status := 0, http.StatusBadRequest
	answers := make([]api.Answer, len(items))
	for n, i := range items {
		a := i.batchEntry()
		answers[n] = a
		if a.Problem == nil {
			continue
		}
		refused++
		if a.Status == http.StatusServiceUnavailable {
			status = a.Status
		}
	}
	return refusedBatch(status, refused, answers)
}

// eventOutcome returns the result of an event: stored, repeated, or a problem. A repeat within a
// batch has the result of the first event.
func (i *item) eventOutcome() (p *api.Problem, repeated bool) {
	switch {
	case i.problem != nil:
		return i.problem, false
	case i.first != nil:
		p, _ = i.first.eventOutcome()
		return p, p == nil
	case i.err != nil:
		return i.g.failureProblem(i), false
	}
	return nil, i.repeated
}

// failureProblem is the problem of an event that was not acknowledged. Only this function turns an
// error of Kafka into advice for the publisher.
func (g *Gateway) failureProblem(i *item) *api.Problem {
	switch {
	case errors.Is(i.err, broker.ErrInDoubt): // first, because ErrInDoubt may wrap the others
		return inDoubt(i.view.ID, i.after)
	case errors.Is(i.err, broker.ErrTooLarge):
		return tooLarge(i.err.Error())
	case attributeOf(i.err) != "":
		return invalidEvent(i.err)
	case errors.Is(i.err, broker.ErrClosed):
		return unavailable("this gateway is stopping; publish it again, to another one or to its successor")
	case errors.Is(i.err, broker.ErrNoStream): // the stream is in the config, so Kafka has lost it
		return unavailable("stream " + i.to.stream + " is in the config but not in Kafka; /readyz shows what is missing")
	}
	// Other errors are only logged, because they may name servers that do not concern a publisher.
	return unavailable("stream " + i.to.stream + " accepts no events now; this one is not stored; publish it again later")
}

// batchEntry returns the event's entry in the answer to a batch.
func (i *item) batchEntry() api.Answer {
	a := api.Answer{ID: i.view.ID, Status: http.StatusAccepted}
	switch problem, repeated := i.eventOutcome(); {
	case problem != nil:
		a.Status, a.Problem = problem.Status, problem
	case repeated:
		a.Repeated = true
	default:
		a.Position = &api.Position{Stream: i.receipt.Stream, Partition: i.receipt.Partition, Offset: i.receipt.Offset}
	}
	return a
}

// answerRoom is the usual size of the answer for one event.
const answerRoom = 128

// appendAnswers writes the answers to a stored batch as encoding/json writes an api.Answers.
// encoding/json is not used, because encoding thousands of answers was a large part of a batch's
// cost. appendAnswers stops at a refused event, because the answer is then a problem.
func appendAnswers(dst []byte, items []*item) (text []byte, stored bool) {
	dst = append(dst, `{"events":[`...)
	for n, i := range items {
		problem, repeated := i.eventOutcome()
		if problem != nil {
			return nil, false
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		if i.view.ID != "" {
			dst = append(appendText(append(dst, `"id":`...), i.view.ID), ',')
		}
		dst = append(dst, `"status":202`...)
		if repeated {
			dst = append(dst, `,"repeated":true}`...)
			continue
		}
		dst = appendText(append(dst, `,"position":{"stream":`...), i.receipt.Stream)
		dst = strconv.AppendInt(append(dst, `,"partition":`...), int64(i.receipt.Partition), 10)
		dst = strconv.AppendInt(append(dst, `,"offset":`...), i.receipt.Offset, 10)
		dst = append(dst, `}}`...)
	}
	return append(dst, "]}\n"...), true
}

// appendText writes a JSON string. A text that needs no escapes is copied, as most texts are.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string cannot fail
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

// publishPlan is the part of a config that publishing needs. One plan is made per config, and every
// request reads it.
type publishPlan struct {
	config  *config.Config
	streams map[string]*publishTarget // streams that callers may publish to
	types   map[string]*publishTarget // streams by the types that they claim
	rest    *publishTarget            // stream for all other types
	names   []string                  // names of the streams, for refusals
	takers  *keys.Takers              // recipes and scorers that take keys from events
}

// publishTarget is a stream to publish to.
type publishTarget struct {
	*streamState
	stream string
	dedupe time.Duration // time for which repeats are recognised; 0 for never
}

// currentPlan returns the plan of the config that applies now.
func (g *Gateway) currentPlan() *publishPlan {
	c := g.opt.Config()
	if p := g.planned.Load(); p != nil && p.config == c {
		return p
	}
	p := &publishPlan{config: c, streams: map[string]*publishTarget{}, types: map[string]*publishTarget{}, takers: keys.NewTakers(c)}
	for _, s := range c.Streams {
		if ownStream(s.Name) {
			continue
		}
		t := &publishTarget{streamState: g.streamState(s.Name), stream: s.Name, dedupe: s.Dedupe}
		p.streams[s.Name] = t
		p.names = append(p.names, s.Name)
		for _, typ := range s.Types {
			p.types[typ] = t
		}
	}
	p.rest = p.streams[tidemill.StreamEvents]
	g.planned.Store(p)
	return p
}

// ownStream reports whether only Tidemill writes to a stream.
func ownStream(name string) bool {
	switch name {
	case tidemill.StreamFacts, tidemill.StreamProgress, tidemill.StreamDeadLetters, tidemill.StreamCommands, tidemill.StreamClock, tidemill.StreamGroupOffsets, tidemill.StreamOutcomes:
		return true
	}
	_, parked := tidemill.CutParked(name)
	return parked
}

// streamFor returns the stream for a type of events.
func (p *publishPlan) streamFor(typ string) *publishTarget {
	if t := p.types[typ]; t != nil {
		return t
	}
	return p.rest
}

// streamState is the part of a stream's state that is kept when the config changes.
type streamState struct {
	*lane
	stored, repeated, refused, failed prometheus.Counter // counters of events
	quiet                             atomic.Int64       // Unix time in seconds before which no failure is logged
}

// streamStates holds the state of each stream.
type streamStates struct {
	mu sync.Mutex
	of map[string]*streamState
}

// streamState returns the state of a stream, and creates it on first use.
func (g *Gateway) streamState(stream string) *streamState {
	g.outlets.mu.Lock()
	defer g.outlets.mu.Unlock()
	o := g.outlets.of[stream]
	if o == nil {
		event := func(outcome string) prometheus.Counter { return g.metrics.events.WithLabelValues(stream, outcome) }
		o = &streamState{lane: g.window.open(), stored: event("stored"), repeated: event("repeated"),
			refused: event("refused"), failed: event("failed")}
		g.outlets.of[stream] = o
	}
	return o
}

// countRefused counts an event that was refused before sending; to is nil if its stream is
// unknown.
func (g *Gateway) countRefused(to *publishTarget) {
	if to == nil {
		g.metrics.homeless.Inc()
		return
	}
	to.refused.Inc()
}

const quietSeconds = 30

// countOutcome counts the outcome of an event. A failing stream is logged at most once per
// quietSeconds, not for every event of an outage.
func (t *publishTarget) countOutcome(log *slog.Logger, err error) {
	switch {
	case err == nil:
		t.stored.Inc()
		return
	case ofTheEvent(err):
		t.refused.Inc()
		return
	}
	t.failed.Inc()
	now, quiet := time.Now().Unix(), t.quiet.Load()
	if now >= quiet && t.quiet.CompareAndSwap(quiet, now+quietSeconds) {
		log.Warn("gateway: events were not stored; their publishers get a 503 and retry", "stream", t.stream, "reason", err)
	}
}

// ofTheEvent reports whether an error is due to the event itself. Such an error does not affect
// other events, and a retry would not help.
func ofTheEvent(err error) bool {
	return errors.Is(err, broker.ErrTooLarge) || attributeOf(err) != ""
}
