package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/dedupe"
)

const (
	smallBody  = 4 << 10 // every request has a buffer of this size
	firstGrown = 64 << 10
	bufferKept = 1 << 20 // a larger one is not kept for the next request
)

// body reads the request's body of at most limit bytes; over is the refusal of a longer one.
// It does not rely on Content-Length: the buffer doubles as bytes arrive, and is charged as
// it grows.
//
// A slow caller is given up, but not a big upload on a slow line. Net/http's ReadTimeout
// limits the time for the small buffer. Then, each time the buffer is full, a deadline is set
// for the next bytes.
func (g *Gateway) body(r *request, limit int, over func() *api.Problem) ([]byte, *api.Problem) {
	if r.ContentLength > int64(limit) {
		return nil, over()
	}
	if p := g.charge(r, cap(r.buffer)); p != nil {
		return nil, p
	}
	began := time.Now()
	b, err := r.buffer[:0], error(nil)
	for err == nil {
		if len(b) == cap(b) {
			if len(b) > limit {
				return nil, over()
			}
			var p *api.Problem
			if b, p = g.grow(r, b, limit, began); p != nil {
				return nil, p
			}
		}
		var n int
		n, err = r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
	}
	r.buffer = b
	r.reading = time.Since(began)
	switch {
	case !errors.Is(err, io.EOF):
		return nil, g.bodyProblem(r, err)
	case len(b) > limit:
		return nil, over()
	}
	return b, nil
}

// grow doubles the buffer, up to the limit.
func (g *Gateway) grow(r *request, b []byte, limit int, began time.Time) ([]byte, *api.Problem) {
	size := max(2*cap(b), firstGrown)
	if length := int(r.ContentLength); length >= len(b) {
		size = min(size, length+1) // one more, to see the end without another growth
	}
	size = min(size, limit+1)
	if p := g.charge(r, size-cap(b)); p != nil {
		return nil, p
	}
	control := http.NewResponseController(&r.answer)
	late := g.opt.Limits.body(began, size)
	// If the connection has no deadlines, net/http's own stays in force.
	_, _ = control.SetReadDeadline(late), control.SetWriteDeadline(late.Add(g.opt.Limits.answer()))
	grown := make([]byte, len(b), size)
	copy(grown, b)
	return grown, nil
}

// bodyProblem is the problem of a body that could not be read to its end. The connection ends,
// because the rest of the body would be taken for the next request.
func (g *Gateway) bodyProblem(r *request, err error) *api.Problem {
	r.answer.Header().Set("Connection", "close")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.metrics.refused.slow.Inc()
		return tooSlow(&g.opt.Limits)
	}
	return invalidRequest("read the body: " + err.Error() + "; send as much as Content-Length says, or chunks as RFC 9112 has them")
}

const (
	flowStep    = 1 << 20 // bytes that must move within the time for a body of that size
	flowBuffer  = 128 << 10
	storeWithin = 5 * time.Minute // time for the store to take a complete body
)

// flow lets a request take any time while bytes move, and cuts it when they do not: a part of
// a large file may take minutes on a slow line. It extends the connection's deadlines after
// each step.
type flow struct {
	g     *Gateway
	c     *http.ResponseController
	body  io.Reader
	left  int64 // bytes of the body that are left; negative if unknown
	moved int
	err   error // error that ended the body, except io.EOF
}

// flowing returns the flow of a request, and charges its buffer.
func (g *Gateway) flowing(r *request) (*flow, *api.Problem) {
	if p := g.charge(r, flowBuffer); p != nil {
		return nil, p
	}
	f := &flow{g: g, c: http.NewResponseController(&r.answer), body: r.Body, left: r.ContentLength}
	f.extend()
	return f, nil
}

func (f *flow) extend() {
	f.left -= int64(f.moved)
	f.moved = 0
	step := int64(flowStep)
	if f.left >= 0 {
		step = min(step, f.left)
	}
	late := f.g.opt.Limits.body(time.Now(), int(step))
	// If the connection has no deadlines, net/http's own stays in force.
	_, _ = f.c.SetReadDeadline(late), f.c.SetWriteDeadline(late.Add(f.g.opt.Limits.answer()))
}

// Read reads from the body.
func (f *flow) Read(to []byte) (int, error) {
	n, err := f.body.Read(to)
	if f.moved += n; f.moved >= flowStep {
		f.extend()
	}
	if errors.Is(err, io.EOF) {
		f.rest()
	} else if err != nil {
		f.err = err
	}
	return n, err
}

// rest sets the deadlines for the time when the body is complete and the store takes it over.
// With the old read deadline, net/http would end the request's context.
func (f *flow) rest() {
	_, _ = f.c.SetReadDeadline(time.Time{}), f.c.SetWriteDeadline(time.Now().Add(storeWithin+f.g.opt.Limits.Write))
}

// sendWithin gives the answer the time for one more step.
func (f *flow) sendWithin() {
	f.moved = 0
	_ = f.c.SetWriteDeadline(f.g.opt.Limits.body(time.Now(), flowStep).Add(f.g.opt.Limits.Write))
}

// send copies a reader to the answer. It holds back the last piece until the reader has
// confirmed at its end that all bytes are right: otherwise the answer is cut short. read is
// the reader's error, sent the caller's.
func (f *flow) send(w io.Writer, from io.Reader) (read, sent error) {
	_ = f.c.SetReadDeadline(time.Time{}) // it would end the context, although the request is complete
	f.sendWithin()
	now, next := make([]byte, 0, flowBuffer/2), make([]byte, flowBuffer/2)
	for {
		n, err := fill(from, next[:cap(next)])
		if err != nil && !errors.Is(err, io.EOF) {
			return err, nil
		}
		if err := f.write(w, now); err != nil {
			return nil, err
		}
		now, next = next[:n], now
		if err != nil {
			return nil, f.write(w, now)
		}
	}
}

func (f *flow) write(w io.Writer, b []byte) error {
	if f.moved += len(b); f.moved >= flowStep {
		f.sendWithin()
	}
	_, err := w.Write(b)
	return err
}

// fill reads until the buffer is full or there is an error, which it returns unchanged. With
// io.ReadFull, a normal end would look like the reader's own io.ErrUnexpectedEOF.
func fill(from io.Reader, to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = from.Read(to[n:])
		n += k
	}
	return n, err
}

// room bounds the memory of the requests under way, of all callers and of each. A request
// never waits for room: if refused, it can come again, and a waiting one would hold a
// connection.
type room struct {
	limits *Limits

	mu      sync.Mutex
	taken   int64
	callers map[string]int64
}

// callersKept is how many callers without a request are remembered, so that frequent callers
// cost no allocation.
const callersKept = 1024

// take takes n bytes for a caller. A request without a caller's name has no share, only the
// common limit.
func (o *room) take(caller string, n int64) *api.Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.taken+n > o.limits.UnderWay:
		return busy(o.limits.UnderWay)
	case caller == "":
	case o.callers[caller]+n > o.limits.Caller:
		return callerBusy(o.limits.Caller)
	default:
		o.callers[caller] += n
	}
	o.taken += n
	return nil
}

func (o *room) give(caller string, n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken -= n
	if caller == "" {
		return
	}
	if o.callers[caller] -= n; o.callers[caller] == 0 && len(o.callers) > callersKept {
		delete(o.callers, caller)
	}
}

// bytes returns the number of bytes that are taken now.
func (o *room) bytes() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return float64(o.taken)
}

// charge takes n more bytes of room for a request. They are returned after its answer.
func (g *Gateway) charge(r *request, n int) *api.Problem {
	name := r.name()
	if p := g.room.take(name, int64(n)); p != nil {
		if p.Status == http.StatusTooManyRequests {
			g.metrics.refused.share.Inc()
		} else {
			g.metrics.refused.room.Inc()
		}
		return p
	}
	r.charged += int64(n)
	return nil
}

// post holds the events of one request on their way to the log. It is used again with its
// items, but only when the outcome of every event is known: until then the producer may still
// call it.
type post struct {
	items []*item // the first used ones are in use
	used  int

	done chan struct{} // gets a value when the last outcome is known
	late *time.Timer

	mu     sync.Mutex
	began  time.Time // time at which sending began
	left   int       // number of sent events without an outcome
	failed bool      // an event failed for a reason that others share
	given  bool      // the wait was given up
}

// item is one event of a post.
type item struct {
	g    *Gateway
	post *post
	own  broker.View
	text []byte // buffer for position

	header [1]string // value of the position header

	view     *broker.View // own, or the view from a batch's reader
	to       *target
	size     int64
	track    *track                      // track from which size was taken
	settle   func(broker.Receipt, error) // i.settled, bound once
	problem  *api.Problem                // reason why it was not sent
	repeated bool                        // it is on the stream already
	question dedupe.Question             // question to the memory of recent events
	first    *item                       // the same event, earlier in the same post

	told    bool // the outcome is known; guarded by post.mu
	receipt broker.Receipt
	err     error
	after   time.Duration // time from the begin of sending to the error
}

const itemsKept = 1024 // items of a large batch that are kept for the next request

func newPost() *post {
	p := &post{done: make(chan struct{}, 1), late: time.NewTimer(time.Hour)}
	p.late.Stop()
	return p
}

// add takes an item into use.
func (p *post) add(g *Gateway) *item {
	if p.used == len(p.items) {
		i := &item{g: g, post: p}
		i.settle = i.settled
		p.items = append(p.items, i)
	}
	i := p.items[p.used]
	i.view = &i.own
	p.used++
	return i
}

func (p *post) all() []*item { return p.items[:p.used] }

// clear makes the post ready for the next request.
func (p *post) clear() {
	for _, i := range p.all() {
		*i = item{g: i.g, post: p, settle: i.settle, text: i.text, own: broker.View{Extensions: i.own.Extensions[:0]}}
	}
	if len(p.items) > itemsKept {
		clear(p.items[itemsKept:])
		p.items = p.items[:itemsKept]
	}
	p.used, p.failed, p.given = 0, false, false
}

// expect sets the number of events that are about to be sent.
func (p *post) expect(n int, now time.Time) {
	p.mu.Lock()
	p.left, p.began = n, now
	p.mu.Unlock()
}

// wait waits until all outcomes are known, for at most d, or until over is closed. Then
// events without an outcome are in doubt, and the post must not be used again.
func (p *post) wait(d time.Duration, over <-chan struct{}) {
	p.late.Reset(d)
	defer p.late.Stop()
	select {
	case <-p.done:
		return
	case <-p.late.C:
	case <-over:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		<-p.done // the last outcome came at the same moment
		return
	}
	p.given = true
	for _, i := range p.all() {
		if !i.told {
			i.err, i.after = broker.ErrInDoubt, time.Since(p.began)
		}
	}
}

// spoil keeps the post from being used again.
func (p *post) spoil() {
	p.mu.Lock()
	p.left, p.given = p.left+1, true
	p.mu.Unlock()
}

// reusable reports whether the producer will no longer call the post.
func (p *post) reusable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

// errBehind is the reason why an event was not sent: an earlier event of its batch was not
// stored. If the batch is published again, each key's events then still have the order of the
// batch.
var errBehind = errors.New("an event before it in the batch was not stored")

// send sends the wanted items in their order, until one fails or the time is over.
func (p *post) send(late time.Time) {
	for n, i := range p.all() {
		switch {
		case !i.wanted():
		case i.g.isOver():
			i.tell(broker.Receipt{}, broker.ErrClosed)
		case n > 0 && (p.stuck() || time.Now().After(late)):
			i.tell(broker.Receipt{}, errBehind)
		default:
			i.send()
		}
	}
}

// stuck reports whether an item has failed for a reason that others share.
func (p *post) stuck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// send waits for room and hands an item to the producer. An earlier item may fail in that
// time.
func (i *item) send() {
	ctx := i.g.patience.context()
	to, producer := i.to, i.g.opt.Producer
	track, err := i.g.window.take(ctx, to.lane, producer.PartitionOf(to.stream, i.view), i.size)
	if err == nil && i.post.stuck() {
		i.g.window.give(track, i.size)
		err = errBehind
	}
	if err != nil {
		i.tell(broker.Receipt{}, err)
		return
	}
	i.track = track
	producer.Send(ctx, to.stream, i.view, i.settle)
}

// settled handles the outcome of an event. The producer calls it, even if the publisher no
// longer waits. The mark must come before tell, because after tell the bytes of the view may
// be used again. The window is freed after tell, so that an event that is let in by it sees a
// failure.
func (i *item) settled(r broker.Receipt, err error) {
	window, track, size := &i.g.window, i.track, i.size
	if err == nil {
		i.g.opt.Repeats.Mark(i.to.stream, i.to.dedupe, i.view.Source, i.view.ID)
	}
	i.tell(r, err)
	window.give(track, size)
}

func (i *item) tell(r broker.Receipt, err error) {
	i.to.told(i.g.log, err)
	p := i.post
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left--
	p.failed = p.failed || err != nil && !ofTheEvent(err)
	if p.given {
		return
	}
	i.told, i.receipt, i.err = true, r, err
	if err != nil {
		i.after = time.Since(p.began)
	}
	if p.left == 0 {
		p.done <- struct{}{}
	}
}

// store sends a request's acceptable events in their order, and then waits for all of them.
func (g *Gateway) store(r *request) {
	g.recognise(r)
	n := 0
	for _, i := range r.post.all() {
		if i.wanted() {
			n++
		}
	}
	if n == 0 {
		return
	}
	began, limits := time.Now(), &g.opt.Limits
	r.post.expect(n, began)
	r.post.send(began.Add(limits.Ack))
	// A batch that waited for room has less time left, or its publisher would be gone before
	// the answer.
	r.post.wait(min(limits.Ack, time.Until(began.Add(limits.Room+limits.Ack))), g.over)
	r.waiting = time.Since(began)
	g.metrics.ack.Observe(r.waiting.Seconds())
}

// wanted reports whether the event must be sent.
func (i *item) wanted() bool { return i.problem == nil && !i.repeated && i.first == nil }

// sizeOf is the size of an event on its way, or a little more: its data, its attributes, and
// its key again. The producer's buffer counts the same, so it has room for each event that
// the window admits.
func sizeOf(v *broker.View) int64 {
	n := len(v.Data) + len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.DataContentType) + len(v.DataSchema) + len(v.Time)
	key := len(v.Subject)
	for i := range v.Extensions {
		x := &v.Extensions[i]
		n += len(x.Name) + len(x.Value) + extensionHead
		if x.Name == tidemill.AttrPartitionKey {
			key = len(x.Value)
		}
	}
	return int64(n + key + eventHead)
}

// A record also has names of headers, and lengths.
const (
	eventHead     = 128
	extensionHead = 8
)

// signed sets an event's authid to its publisher, if known. A publisher may not sign for
// another.
func signed(v *broker.View, name string) *api.Problem {
	if name == "" {
		return nil
	}
	as, given := v.Attribute(tidemill.AttrAuthID)
	switch {
	case !given:
		if err := v.Set(tidemill.AttrAuthID, name); err != nil {
			return invalidEvent(err)
		}
	case as != name:
		return forgedSignature(as, name)
	}
	return nil
}

// recognise finds the repeats: events that are on the stream already, or earlier in the same
// batch. The first event counts, so all others are repeats, whatever they contain.
func (g *Gateway) recognise(r *request) {
	items := r.post.all()
	if len(items) > 1 {
		recogniseWithin(items)
	}
	for _, i := range items {
		if i.wanted() {
			i.question = g.opt.Repeats.Ask(i.to.stream, i.to.dedupe, i.view.Source, i.view.ID)
		}
	}
	ctx := context.Background() // the memory has a timeout, and a publisher that hangs up must not have its repeats stored
	for _, i := range items {
		if i.question != (dedupe.Question{}) && i.question.Seen(ctx) {
			i.repeated = true
			i.to.repeated.Inc()
		}
	}
}

// recogniseWithin finds the repeats within a batch.
func recogniseWithin(items []*item) {
	type event struct {
		to         *target
		source, id string
	}
	first := make(map[event]*item, len(items))
	for _, i := range items {
		if !i.wanted() || i.to.dedupe == 0 {
			continue
		}
		e := event{i.to, i.view.Source, i.view.ID}
		if i.first = first[e]; i.first != nil {
			i.to.repeated.Inc()
			continue
		}
		first[e] = i
	}
}
