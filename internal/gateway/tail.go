package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/deadletters"
	"tidemill.dev/triggers/filter"
)

const (
	tailBytes   = 4 << 20   // approximate number of bytes that a tail holds
	tailPortion = 256 << 10 // bytes of collected text at which the text is sent
)

// tail sends a stream's events as they arrive, as server-sent events.
func (g *Gateway) tail(w http.ResponseWriter, r *request) *api.Problem {
	q, p := readTailQuery(r, time.Now())
	if p != nil {
		return p
	}
	if p := g.tails.enter(r.callerName()); p != nil {
		return p
	}
	reason := tailFailed
	defer func() { g.tails.leave(r.callerName(), reason) }()
	ctx, release := g.untilEnding(r.Context())
	defer release()
	reader, err := g.openTail(ctx, r.value, q)
	if err != nil {
		return g.cannotTail(ctx, r.value, err)
	}
	f := &tailSender{reader: reader, where: q.where, limit: q.limit, alive: g.opt.Limits.Keepalive, viewer: g.viewer(r), events: g.tails.events,
		text: newEventText(r.value), out: newPatientWriter(w, g.opt.Limits.Write)}
	last := f.out.endWith(ctx)
	defer func() {
		_ = reader.Close(context.WithoutCancel(ctx)) // a reader without a group closes without an error
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

var errClosing = errors.New("the gateway is stopping")

func (g *Gateway) openTail(ctx context.Context, stream string, q tailQuery) (*follow.Reader, error) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	return follow.OpenReader(ctx, g.opt.Broker, follow.ReaderOptions{Stream: stream, Start: q.start, Resume: q.resume, ToEnd: q.toEnd, MaxBytes: tailBytes})
}

// cannotTail is the problem of a stream that cannot be read.
func (g *Gateway) cannotTail(ctx context.Context, stream string, err error) *api.Problem {
	if errors.Is(err, broker.ErrNoStream) {
		infos, _ := g.survey.current(ctx) // after an error, the answer lists no streams
		return noSuchStream(stream, namesOf(infos))
	}
	if ctx.Err() == nil {
		g.log.Warn("gateway: opening a stream failed; the caller gets a 503", "stream", stream, "reason", err)
	}
	return unavailable("the stream cannot be read now; try again later")
}

// beginEvents sends the head of the answer and removes the read deadline. Net/http keeps reading to
// notice that the caller has disconnected, so the deadline would end the tail.
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

// mostLooked is the number of bytes that a condition may examine for one event. That is a tenth of
// a second's work, and far more than an honest condition needs. A reader may have many tails, and
// each tail may reach the most expensive event of the stream.
const mostLooked = 64 << 20

const lastEventID = "Last-Event-ID"

// tailParameters lists the parameters of a tail.
func tailParameters() []string { return []string{"follow", "from", "lastEventId", "limit", "where"} }

// readTailQuery reads the parameters. The id in the header is newer than the id in the query,
// because a browser that reconnects repeats the address and adds the header.
func readTailQuery(r *request, now time.Time) (q tailQuery, p *api.Problem) {
	values, p := r.parseQuery(tailParameters())
	if p != nil {
		return q, p
	}
	var err error
	if q.start, err = follow.ParseFrom(orElse(values.Get("from"), "end"), now); err != nil {
		return q, badParameter("from", err.Error()+"; in an address + is %2B")
	}
	if q.toEnd, p = readNoFollow(values); p != nil {
		return q, p
	}
	if limit := values.Get("limit"); limit != "" {
		if q.limit, err = strconv.Atoi(limit); err != nil || q.limit < 1 {
			return q, badParameter("limit", fmt.Sprintf("%q is not a number of events; give 1 or more, or leave it out", clipText(limit)))
		}
	}
	if where := values.Get("where"); where != "" {
		if q.where, err = filter.CompileFor(where, mostLooked); err != nil {
			return q, badParameter("where", err.Error())
		}
	}
	return q, q.readPlace(r, values.Get("lastEventId"))
}

// readNoFollow reports whether an answer is to end instead of following what comes.
func readNoFollow(values url.Values) (bool, *api.Problem) {
	switch follow := orElse(values.Get("follow"), "true"); follow {
	case "true":
		return false, nil
	case "false":
		return true, nil
	default:
		return false, badParameter("follow", fmt.Sprintf("%q is neither true nor false", clipText(follow)))
	}
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
	return invalidRequest(fmt.Sprintf("%s: %s", clipText(name), why))
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// openTails counts the open tails. Each tail needs a connection to Kafka and some megabytes of
// memory, so their number is limited, and one caller cannot open all of them.
type openTails struct {
	seats
	ended  *prometheus.CounterVec
	events prometheus.Counter
}

// seats limits the number of open answers of one kind, in all and by caller.
type seats struct {
	what      string // the kind, in words and in the plural
	most, own int
	mu        sync.Mutex
	open      int
	of        map[string]int // number by caller's name
}

// The reasons why a tail ends.
const (
	tailEnded   = "end"     // the tail reached its end or its limit
	tailGone    = "gone"    // the reader disconnected
	tailSlow    = "slow"    // the reader took nothing and was cut off
	tailRefused = "refused" // the reader's token or role is gone
	tailClosing = "closing" // the gateway closes
	tailFailed  = "failed"  // the stream cannot be read any more
)

func newTails(limits *Limits, to prometheus.Registerer) (*openTails, error) {
	t := &openTails{seats: seats{what: "tails", most: limits.Tails, own: limits.OwnTails, of: map[string]int{}},
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

func (s *seats) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.open)
}

// enter admits a caller, unless too many are open. For a caller without a name, only the common
// limit applies.
func (s *seats) enter(caller string) *api.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open >= s.most:
		return unavailable(fmt.Sprintf("%d %s are open, which is the limit; try again when one has ended", s.most, s.what))
	case caller == "":
	case s.of[caller] >= s.own:
		return tooManyOpen(s.own, s.what)
	default:
		s.of[caller]++
	}
	s.open++
	return nil
}

func (s *seats) leave(caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.of[caller]--; s.of[caller] <= 0 {
		delete(s.of, caller)
	}
}

// leave makes room for another tail. The end is counted before the next tail can enter.
func (t *openTails) leave(caller, reason string) {
	t.ended.WithLabelValues(reason).Inc()
	t.seats.leave(caller)
}

// tailSender sends the events of a reader to one caller.
type tailSender struct {
	reader *follow.Reader
	viewer *tailReader
	where  *filter.Filter // nil matches every event
	limit  int            // number of events to send; 0 means no limit
	alive  time.Duration  // longest time without a sent byte
	events prometheus.Counter
	text   *eventText
	out    *patientWriter

	at   follow.Place // position after the last event that was read
	told follow.Place // last position that the caller was sent, or an earlier one
	sent int          // number of events sent
	last time.Time    // time of the last text sent
}

// run sends events until the tail's end or limit, or until an error.
func (f *tailSender) run(ctx context.Context) error {
	f.at = f.reader.Place()
	f.told = slices.Clone(f.at)
	f.text.addStart(f.at)
	if err := f.flush(ctx); err != nil {
		return err
	}
	for {
		batch, err := f.reader.Next(ctx)
		if err == io.EOF {
			return f.sendEnd(ctx)
		}
		if err == nil {
			err = f.viewer.recheck(ctx)
		}
		if err != nil {
			return err
		}
		done, err := f.sendBatch(ctx, batch)
		if err != nil {
			return err
		}
		if done {
			return f.sendEnd(ctx)
		}
		f.at = f.reader.Place()
		if time.Since(f.last) >= f.alive {
			f.text.addKeepAlive(f.at, !slices.Equal(f.at, f.told))
			f.told = slices.Clone(f.at)
			if err := f.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// sendBatch sends the events of a batch that the caller may see and that match. The result done
// means that the limit is reached.
func (f *tailSender) sendBatch(ctx context.Context, batch []follow.Event) (done bool, err error) {
	before := f.sent
	defer func() { f.events.Add(float64(f.sent - before)) }()
	for i := range batch {
		e := &batch[i]
		f.at.Set(e.Partition, e.Next)
		if !f.viewer.maySee(e) || !f.matches(e) {
			continue
		}
		f.text.addEvent(e, f.at)
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

// matches reports whether an event matches the condition. A record that is not an event always
// matches, because no condition can apply to it.
func (f *tailSender) matches(e *follow.Event) bool {
	return f.where == nil || e.Err != nil || f.where.Match(&e.View)
}

// sendEnd sends the event that marks the end of the tail.
func (f *tailSender) sendEnd(ctx context.Context) error {
	f.text.addEnd(f.at)
	return f.flush(ctx)
}

// flush sends the collected text.
func (f *tailSender) flush(ctx context.Context) error {
	b := f.text.bytes()
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

// bytes returns the text so far. The slice is valid until more text is added.
func (t *eventText) bytes() []byte {
	b := t.b.Bytes()
	t.b.Reset()
	return b
}

// addStart adds the time after which a browser reconnects, and the position from which it resumes.
// A browser that is cut off before the first event must not miss the next events.
func (t *eventText) addStart(at follow.Place) {
	t.b.WriteString("retry: 1000\n")
	t.id(at)
	t.b.WriteByte('\n')
}

// addKeepAlive adds a comment, so that a connection without events is not taken for dead. The
// comment's position is added if it has moved past events that are not for this reader.
func (t *eventText) addKeepAlive(at follow.Place, moved bool) {
	t.b.WriteString(": keepalive\n")
	if moved {
		t.id(at)
	}
	t.b.WriteByte('\n')
}

// addEnd adds the event that marks the end. Without this event, a browser would reconnect.
func (t *eventText) addEnd(at follow.Place) {
	t.b.WriteString("event: end\n")
	t.id(at)
	t.b.WriteString("data: {}\n\n")
}

// addEvent adds one event, with the position after it.
func (t *eventText) addEvent(e *follow.Event, at follow.Place) {
	t.id(at)
	t.addData(tailed(e))
	t.b.WriteByte('\n')
}

func (t *eventText) id(at follow.Place) {
	t.b.WriteString("id: ")
	t.b.WriteString(at.Token(t.stream))
	t.b.WriteByte('\n')
}

// addData adds one line, because JSON has no line breaks except the one that Encode adds. An event
// that cannot be encoded is sent as a record with an error, because it would otherwise end every
// tail that reaches it.
func (t *eventText) addData(line api.Tailed) {
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

// tailReader is the caller of a tail. A tail may last longer than the caller's rights: the token
// may be revoked or expire, or its keys may change. So the token is checked again before events are
// sent.
type tailReader struct {
	guard         *access.Guard // nil if there are no tokens
	authorization string
	caller        *access.Caller
	keyless       func(dataset string) bool // reports whether a recipe without keys makes a dataset
}

func (g *Gateway) viewer(r *request) *tailReader {
	return &tailReader{g.opt.Access, r.Header.Get("Authorization"), r.caller, func(dataset string) bool { return g.owners().Keyless(dataset) }}
}

var errRefused = errors.New("the reader lost the right to read")

// recheck checks that the reader may still read. An admitted reader may continue while the issuer
// cannot be reached.
func (v *tailReader) recheck(ctx context.Context) error {
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
		return fmt.Errorf("%w: %q lacks the role %s now", errRefused, clipText(caller.Name()), access.Read)
	}
	v.caller = caller
	return nil
}

// maySee reports whether the reader may see an event. Every reader gets a record without any data, such
// as a note about lost offsets. Without that note a reader would believe to have seen all events.
func (v *tailReader) maySee(e *follow.Event) bool {
	return v.caller.AllKeys(access.Read) || v.mayTouch(e) ||
		e.Err != nil && e.Key == nil && e.Data == nil && e.Foreign == nil
}

// mayTouch reports whether the reader may see the keys of an event, of which an event of users may have two.
func (v *tailReader) mayTouch(e *follow.Event) bool {
	partition, keyed := e.Attribute(tidemill.AttrPartitionKey)
	return v.caller.MayTouch(access.Read, v.ownerOf(e)) && (!keyed || v.caller.MayTouch(access.Read, partition))
}

// ownerOf returns the key whose readers may see an event; empty if only readers of all keys may. It is the
// event's subject, as for a model's key, or the record's key if the event has no subject. An event about a
// run without a key, or about the dataset of such runs, has no owner. On the streams of Tidemill's own
// processes, a subject is the name of a trigger, a schedule, a recipe, a pool or a group.
func (v *tailReader) ownerOf(e *follow.Event) string {
	switch e.Stream {
	case tidemill.StreamCommands, tidemill.StreamClock, tidemill.StreamGroupOffsets:
		return ""
	}
	key := e.Subject
	if key == "" {
		key = string(e.Key)
	}
	if recipe := deadletters.RecipeOf(&e.View); recipe != "" {
		key = tidemill.OwnerOf(recipe, key)
	}
	if dataset, _ := e.Attribute(tidemill.AttrDataset); e.Type == tidemill.TypeNewData && v.keyless(dataset) {
		return ""
	}
	return key
}
