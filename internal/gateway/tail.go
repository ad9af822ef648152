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
	tailBytes   = 8 << 20   // approximate number of bytes that a tail holds
	tailPortion = 256 << 10 // bytes of text after which it is sent
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

// untilEnding returns a context that ends with the request, or when the gateway closes,
// because Close waits for all requests.
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
		infos, _ := g.survey.now(ctx) // if this fails, the answer lists no streams
		return noSuchStream(stream, namesOf(infos))
	}
	if ctx.Err() == nil {
		g.log.Warn("gateway: opening a stream failed; the caller gets a 503", "stream", stream, "reason", err)
	}
	return unavailable("the stream cannot be read now; come back a little later")
}

// beginEvents sends the head of the answer and removes the read deadline. Net/http keeps
// reading to notice that the caller has gone, and would meet that deadline while the tail
// continues.
func beginEvents(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a connection without deadlines needs no change
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would hold back events otherwise
	w.WriteHeader(http.StatusOK)
}

// whyEnded returns the reason why a tail ended, and logs it if an operator should know.
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
		g.log.Info("gateway: the reader of a tail was too slow; the tail ends", "stream", r.value)
		return tailSlow
	case ctx.Err() != nil || errors.Is(err, errUnsent):
		return tailGone
	}
	g.log.Warn("gateway: reading a stream failed; the tail ends", "stream", r.value, "reason", err)
	return tailFailed
}

// tailQuery holds the parameters of a tail.
type tailQuery struct {
	start  broker.Start
	resume follow.Place   // nil if the request has no id
	where  *filter.Filter // nil matches every event
	toEnd  bool
	limit  int // number of events to send; 0 means no limit
}

// mostLooked is how many bytes a condition may look at for one event: a tenth of a second's
// work, and far more than an honest condition needs. A reader may have many tails, and each
// may meet the worst event that was ever published.
const mostLooked = 64 << 20

const lastEventID = "Last-Event-ID"

// tailParameters lists the parameters of a tail.
func tailParameters() []string { return []string{"follow", "from", "lastEventId", "limit", "where"} }

// readTailQuery reads the parameters. The id in the header is newer than the one in the
// query, because a browser repeats the address and adds the header.
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

// tails counts the open tails. Each holds a connection to Kafka and some megabytes, so they
// are limited, and one caller cannot get all of them.
type tails struct {
	limits *Limits
	mu     sync.Mutex
	open   int
	of     map[string]int // number of tails by caller's name
	ended  *prometheus.CounterVec
	events prometheus.Counter
}

// The reasons why a tail ends.
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

// enter admits a caller, unless too many tails are open. A caller without a name has no
// share, only the common limit.
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

// leave makes room for another tail. The ended tail is counted before the next one can enter.
func (t *tails) leave(caller, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended.WithLabelValues(reason).Inc()
	t.open--
	if t.of[caller]--; t.of[caller] <= 0 {
		delete(t.of, caller)
	}
}

// follower sends the events of a reader to one caller.
type follower struct {
	reader *follow.Reader
	viewer *viewer
	where  *filter.Filter // nil matches every event
	limit  int            // number of events to send; 0 means no limit
	alive  time.Duration  // longest time without a sign of life
	events prometheus.Counter
	text   *eventText
	out    *patientWriter

	at   follow.Place // position after the last event that was read
	told follow.Place // position from which the caller would resume, or a little earlier
	sent int          // number of events sent
	last time.Time    // time of the last text sent
}

// run sends events until the end or the limit, or until an error.
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

// send sends the events of a batch that the caller may see and wants. done means that the
// limit is reached.
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

// wants reports whether an event matches the condition. A record that is not an event is
// always wanted, because no condition can apply to it.
func (f *follower) wants(e *follow.Event) bool {
	return f.where == nil || e.Err != nil || f.where.Match(&e.View)
}

// end sends the mark of the end.
func (f *follower) end(ctx context.Context) error {
	f.text.end(f.at)
	return f.flush(ctx)
}

// flush sends the collected text.
func (f *follower) flush(ctx context.Context) error {
	b := f.text.taken()
	if len(b) == 0 {
		return nil
	}
	f.last = time.Now()
	return f.out.write(ctx, b)
}

// eventText collects the text of server-sent events.
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

// taken returns the text so far. It is valid until more is added.
func (t *eventText) taken() []byte {
	b := t.b.Bytes()
	t.b.Reset()
	return b
}

// begin gives a browser the time after which to reconnect and the position to resume from: a
// browser that is cut off before the first event must not miss the next ones.
func (t *eventText) begin(at follow.Place) {
	t.b.WriteString("retry: 1000\n")
	t.id(at)
	t.b.WriteByte('\n')
}

// alive keeps a connection from being taken for dead. It includes the position if that has
// moved past events that are not for this reader.
func (t *eventText) alive(at follow.Place, moved bool) {
	t.b.WriteString(": keepalive\n")
	if moved {
		t.id(at)
	}
	t.b.WriteByte('\n')
}

// end marks the end of the answer. Without it, a browser would reconnect.
func (t *eventText) end(at follow.Place) {
	t.b.WriteString("event: end\n")
	t.id(at)
	t.b.WriteString("data: {}\n\n")
}

// event adds one event, with the position after it.
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

// data writes one line: JSON has no line breaks except the one that Encode adds. An event
// that cannot be encoded is sent as a record with an error, or it would end every tail that
// reaches it.
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

// viewer is the reader of a tail. A tail may last longer than the reader's rights: the token
// may be revoked or expire, or its keys may change. So the token is checked again before each
// sending.
type viewer struct {
	guard         *access.Guard // nil if there are no tokens
	authorization string
	caller        *access.Caller
}

func (g *Gateway) viewer(r *request) *viewer {
	return &viewer{g.opt.Access, r.Header.Get("Authorization"), r.caller}
}

var errRefused = errors.New("the reader lost the right to read")

// again checks that the reader may still read. A reader that was admitted stays while its
// issuer cannot be reached.
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

// may reports whether the reader may see an event, by the event's key: its subject, as for a
// model's key, or the record's key if it has no subject. A record without any data, such as a
// note about lost offsets, is for every reader: a reader that misses it believes to have seen
// all events.
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
