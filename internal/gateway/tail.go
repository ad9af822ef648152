package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/access"
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
		g.log.Info("gateway: the reader of a tail lost the right to read it; the tail ends", "stream", r.value, "reason", err)
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
			Help: "Tails that ended, by reason: end, gone, slow (cut off), refused (lost the right to read), closing or failed."}, []string{"reason"}),
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

// follower sends what a reader reads to one caller.
type follower struct {
	reader *follow.Reader
	viewer *viewer
	where  *filter.Filter // nil is every event
	limit  int            // of events; 0 is none
	alive  time.Duration  // between two signs of life
	events prometheus.Counter
	text   *eventText
	out    *patientWriter

	at   follow.Place // behind what was read
	told follow.Place // what the caller goes on from, or a little before it
	sent int          // events
	last time.Time    // something was sent
}

// run sends until the end, if there is to be one, or until something ends it.
func (f *follower) run(ctx context.Context) error {
	f.at = f.reader.Place()
	f.told = slices.Clone(f.at)
	f.text.begin(f.at)
	if err := f.flush(ctx); err != nil {
		return err
	}
	for {
		batch, err := f.reader.Next(ctx)
		if err == io.EOF {
			return f.end(ctx)
		}
		if err == nil {
			err = f.viewer.again(ctx)
		}
		if err != nil {
			return err
		}
		done, err := f.send(ctx, batch)
		if err != nil {
			return err
		}
		if done {
			return f.end(ctx)
		}
		f.at = f.reader.Place()
		if time.Since(f.last) >= f.alive {
			f.text.alive(f.at, !slices.Equal(f.at, f.told))
			f.told = slices.Clone(f.at)
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// send sends what the caller may see and wants of a batch, and is done if that reaches
// the limit.
func (f *follower) send(ctx context.Context, batch []follow.Event) (done bool, err error) {
	before := f.sent
	defer func() { f.events.Add(float64(f.sent - before)) }()
	for i := range batch {
		e := &batch[i]
		f.at.Set(e.Partition, e.Next)
		if !f.viewer.may(e) || !f.wants(e) {
			continue
		}
		f.text.event(e, f.at)
		if f.sent++; f.sent == f.limit {
			return true, nil
		}
		if i == len(batch)-1 {
			f.told = slices.Clone(f.at)
		}
		if f.text.b.Len() >= tailPortion {
			if err := f.flush(ctx); err != nil {
				return false, err
			}
		}
	}
	return false, f.flush(ctx)
}

// wants judges an event. What is none matches no condition and is no reason for
// silence either.
func (f *follower) wants(e *follow.Event) bool {
	return f.where == nil || e.Err != nil || f.where.Match(&e.View)
}

// end tells the caller that this was all.
func (f *follower) end(ctx context.Context) error {
	f.text.end(f.at)
	return f.flush(ctx)
}

// flush sends what text there is.
func (f *follower) flush(ctx context.Context) error {
	b := f.text.taken()
	if len(b) == 0 {
		return nil
	}
	f.last = time.Now()
	return f.out.write(ctx, b)
}

// eventText makes the text of server-sent events, some at a time.
type eventText struct {
	stream string
	b      bytes.Buffer
	json   *json.Encoder
}

func newEventText(stream string) *eventText {
	t := &eventText{stream: stream}
	t.json = json.NewEncoder(&t.b)
	t.json.SetEscapeHTML(false)
	return t
}

// taken is the text made so far. It is valid until more is made.
func (t *eventText) taken() []byte {
	b := t.b.Bytes()
	t.b.Reset()
	return b
}

// begin tells a browser how soon to come back, and from where: one that is cut
// off before the first event must not miss what comes meanwhile.
func (t *eventText) begin(at follow.Place) {
	t.b.WriteString("retry: 1000\n")
	t.id(at)
	t.b.WriteByte('\n')
}

// alive keeps connections from being taken for dead. It tells the place if that
// has moved over events that are not for this reader.
func (t *eventText) alive(at follow.Place, moved bool) {
	t.b.WriteString(": keepalive\n")
	if moved {
		t.id(at)
	}
	t.b.WriteByte('\n')
}

// end tells a reader that he has all he asked for. A browser would come back
// otherwise.
func (t *eventText) end(at follow.Place) {
	t.b.WriteString("event: end\n")
	t.id(at)
	t.b.WriteString("data: {}\n\n")
}

// event is one event, with the place behind it.
func (t *eventText) event(e *follow.Event, at follow.Place) {
	t.id(at)
	t.data(tailed(e))
	t.b.WriteByte('\n')
}

func (t *eventText) id(at follow.Place) {
	t.b.WriteString("id: ")
	t.b.WriteString(at.Token(t.stream))
	t.b.WriteByte('\n')
}

// data writes one line: JSON has no line breaks but those that Encode adds. What
// has no JSON is told as a record that is none, or it would end every tail that
// comes to it.
func (t *eventText) data(line api.Tailed) {
	begin := t.b.Len()
	t.b.WriteString("data: ")
	if err := t.json.Encode(line); err != nil {
		t.b.Truncate(begin)
		t.b.WriteString("data: ")
		_ = t.json.Encode(api.Tailed{Partition: line.Partition, Offset: line.Offset, Received: line.Received, Error: err.Error()})
	}
}

func tailed(e *follow.Event) api.Tailed {
	line := api.Tailed{Partition: e.Partition, Offset: e.Offset, Received: e.Received.UTC()}
	if e.Err != nil {
		line.Error, line.Key, line.Data = e.Err.Error(), e.Key, e.Data
		return line
	}
	line.Event = broker.MarshalStructured(&e.View)
	return line
}

// viewer is who reads a tail. A tail may outlive what he was let in by: his
// token is taken away or runs out, or his keys change. So he is asked for it
// again before he is sent anything.
type viewer struct {
	guard         *access.Guard // nil at the open door
	authorization string
	caller        *access.Caller
}

func (g *Gateway) viewer(r *request) *viewer {
	return &viewer{g.opt.Access, r.Header.Get("Authorization"), r.caller}
}

var errRefused = errors.New("the reader lost the right to read")

// again finds out whether he may still read. Whoever was let in stays while his
// issuer cannot be asked.
func (v *viewer) again(ctx context.Context) error {
	if v.guard == nil {
		return nil
	}
	caller, err := v.guard.Caller(ctx, v.authorization)
	switch {
	case errors.Is(err, access.ErrIssuerAway):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errRefused, err)
	case !caller.Has(access.Read):
		return fmt.Errorf("%w: %q lacks the role %s now", errRefused, clip(caller.Name()), access.Read)
	}
	v.caller = caller
	return nil
}

// may tells which events of a stream he may see: those of his keys. An event's
// key is its subject, as a model's key is, or the record's where it has none.
// What holds nothing of anybody, such as word of offsets that are gone, is for
// everyone: who is not told believes he has seen all.
func (v *viewer) may(e *follow.Event) bool {
	if v.caller.AllKeys(access.Read) {
		return true
	}
	key := e.Subject
	if key == "" {
		key = string(e.Key)
	}
	return e.Err != nil && e.Key == nil && e.Data == nil && e.Foreign == nil || v.caller.MayTouch(access.Read, key)
}
