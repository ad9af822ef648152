package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/triggers/filter"
)

const (
	tailBytes   = 8 << 20   // that a tail holds, about
	tailPortion = 256 << 10 // of text is sent before more is made
)

// tail sends a stream's events as they arrive, as server-sent events.
func (g *Gateway) tail(w http.ResponseWriter, r *request) *api.Problem {
	q, p := readTailQuery(r, time.Now())
	if p != nil {
		return p
	}
	if p := g.tails.enter(r.name()); p != nil {
		return p
	}
	reason := tailFailed
	defer func() { g.tails.leave(r.name(), reason) }()
	ctx, release := g.untilEnding(r.Context())
	defer release()
	reader, err := g.openTail(ctx, r.value, q)
	if err != nil {
		return g.cannotTail(ctx, r.value, err)
	}
	f := &follower{reader: reader, where: q.where, limit: q.limit, alive: g.opt.Limits.Keepalive, viewer: g.viewer(r), events: g.tails.events,
		text: newEventText(r.value), out: newPatientWriter(w, g.opt.Limits.Write)}
	last := f.out.endWith(ctx)
	defer func() {
		_ = reader.Close(context.WithoutCancel(ctx)) // it has no group, so nothing can fail
		last()
	}()
	beginEvents(w)
	reason = g.whyEnded(ctx, r, f.run(ctx))
	return nil
}

// untilEnding is a context that ends with the request or when the gateway
// closes, which waits for whoever is under way.
func (g *Gateway) untilEnding(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-g.ending:
			cancel(errClosing)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

var errClosing = errors.New("the gateway closes")

func (g *Gateway) openTail(ctx context.Context, stream string, q tailQuery) (*follow.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	return follow.OpenReader(ctx, g.opt.Broker, follow.ReaderOptions{Stream: stream, Start: q.start, Resume: q.resume, ToEnd: q.toEnd, MaxBytes: tailBytes})
}

// cannotTail is the problem of a stream that cannot be read.
func (g *Gateway) cannotTail(ctx context.Context, stream string, err error) *api.Problem {
	if errors.Is(err, broker.ErrNoStream) {
		infos, _ := g.survey.now(ctx) // without it the answer says less
		return noSuchStream(stream, namesOf(infos))
	}
	if ctx.Err() == nil {
		g.log.Warn("a stream cannot be read", "stream", stream, "reason", err)
	}
	return unavailable("the stream cannot be read now; come back a little later")
}

// beginEvents sends the head of the answer. What it undoes are the limits of an
// answer that is whole: reading on is how net/http notices that the caller has
// gone, and its time would be up while the tail goes on.
func beginEvents(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a connection that knows none has none
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events to itself until it has some
	w.WriteHeader(http.StatusOK)
}

// whyEnded judges what ended a tail, and logs what the operator should know.
func (g *Gateway) whyEnded(ctx context.Context, r *request, err error) string {
	switch {
	case err == nil:
		return tailEnded
	case errors.Is(context.Cause(ctx), errClosing):
		return tailClosing
	case errors.Is(err, errRefused):
		g.log.Info("a tail is ended, for its reader may read no more", "stream", r.value, "reason", err)
		return tailRefused
	case errors.Is(err, errSlow):
		g.log.Info("a reader was too slow and is cut off", "stream", r.value)
		return tailSlow
	case ctx.Err() != nil || errors.Is(err, errUnsent):
		return tailGone
	}
	g.log.Warn("a tail ended", "stream", r.value, "reason", err)
	return tailFailed
}

// tailQuery is what a caller asks of a tail.
type tailQuery struct {
	start  broker.Start
	resume follow.Place   // nil without an id
	where  *filter.Filter // nil is every event
	toEnd  bool
	limit  int // of events that are sent; 0 is none
}

// mostLooked is how many bytes a condition may look at for one event: a tenth of
// a second's work, and far more than a condition that is meant needs. A reader
// may have many tails, and each reads the worst event that anybody has published.
const mostLooked = 64 << 20

const lastEventID = "Last-Event-ID"

// tailParameters are those that a tail knows.
func tailParameters() []string { return []string{"follow", "from", "lastEventId", "limit", "where"} }

// readTailQuery reads the parameters. The id of the header is newer than that of
// the query: a browser repeats the address and adds the header.
func readTailQuery(r *request, now time.Time) (q tailQuery, p *api.Problem) {
	values, p := r.query(tailParameters())
	if p != nil {
		return q, p
	}
	var err error
	if q.start, err = follow.ParseFrom(orElse(values.Get("from"), "end"), now); err != nil {
		return q, badParameter("from", err.Error()+"; in an address + is %2B")
	}
	switch follow := orElse(values.Get("follow"), "true"); follow {
	case "true":
	case "false":
		q.toEnd = true
	default:
		return q, badParameter("follow", fmt.Sprintf("%q is neither true nor false", clip(follow)))
	}
	if limit := values.Get("limit"); limit != "" {
		if q.limit, err = strconv.Atoi(limit); err != nil || q.limit < 1 {
			return q, badParameter("limit", fmt.Sprintf("%q is not a number of events; give 1 or more, or leave it out", clip(limit)))
		}
	}
	if where := values.Get("where"); where != "" {
		if q.where, err = filter.CompileFor(where, mostLooked); err != nil {
			return q, badParameter("where", err.Error())
		}
	}
	return q, q.readPlace(r, values.Get("lastEventId"))
}

func (q *tailQuery) readPlace(r *request, inQuery string) *api.Problem {
	name, id := "lastEventId", inQuery
	if header := r.Header.Get(lastEventID); header != "" {
		name, id = lastEventID, header
	}
	if id == "" {
		return nil
	}
	place, err := follow.ParseToken(id, r.value)
	if err != nil {
		return badParameter(name, err.Error())
	}
	q.resume = place
	return nil
}

func badParameter(name, why string) *api.Problem {
	return invalidRequest(fmt.Sprintf("%s: %s", clip(name), why))
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// tails are those that are open. Each holds a connection to Kafka and some
// megabytes, so they are bounded, and one caller does not get all of them.
type tails struct {
	limits *Limits
	mu     sync.Mutex
	open   int
	of     map[string]int // callers with a name
	ended  *prometheus.CounterVec
	events prometheus.Counter
}

// Why a tail ended.
const (
	tailEnded   = "end"     // it was read to its end or its limit
	tailGone    = "gone"    // the reader went away
	tailSlow    = "slow"    // the reader took nothing and was cut off
	tailRefused = "refused" // the reader's token or role is gone
	tailClosing = "closing" // the gateway closes
	tailFailed  = "failed"  // the stream cannot be read any more
)

func newTails(limits *Limits, to prometheus.Registerer) (*tails, error) {
	t := &tails{limits: limits, of: map[string]int{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemill_gateway_tails_ended_total",
			Help: "Tails that ended, by reason: end, gone, slow (cut off), refused (may read no more), closing or failed."}, []string{"reason"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemill_gateway_tailed_events_total",
			Help: "Events sent to the readers of tails."})}
	for _, reason := range []string{tailEnded, tailGone, tailSlow, tailRefused, tailClosing, tailFailed} {
		t.ended.WithLabelValues(reason)
	}
	for _, c := range []prometheus.Collector{t.ended, t.events,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemill_gateway_tails",
			Help: "Tails open now."}, t.count),
	} {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *tails) count() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return float64(t.open)
}

// enter lets a caller in, unless there are too many. One without a name is
// everybody, and so has no share of its own.
func (t *tails) enter(caller string) *api.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.open >= t.limits.Tails:
		return unavailable(fmt.Sprintf("%d tails are open, and more are not served at once; come back when one has ended", t.limits.Tails))
	case caller == "":
	case t.of[caller] >= t.limits.OwnTails:
		return callerTails(t.limits.OwnTails)
	default:
		t.of[caller]++
	}
	t.open++
	return nil
}

// leave makes room for another. Whoever gets in by that finds the one before
// counted.
func (t *tails) leave(caller, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended.WithLabelValues(reason).Inc()
	t.open--
	if t.of[caller]--; t.of[caller] <= 0 {
		delete(t.of, caller)
	}
}
