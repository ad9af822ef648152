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
	bufferKept = 1 << 20 // a larger buffer is not kept for the next request
)

// readBody reads the request's body of at most limit bytes; over is the refusal of a longer body.
// Content-Length is not trusted: the buffer doubles when bytes arrive, and each growth is charged.
//
// A stalled caller is cut off, but a big upload on a slow line is not. Net/http's ReadTimeout
// limits the time for the small buffer. Then, each time the buffer is full, a deadline is set for
// the next bytes.
func (g *Gateway) readBody(r *request, limit int, over func() *api.Problem) ([]byte, *api.Problem) {
	if r.ContentLength > int64(limit) {
		return nil, over()
	}
	if p := g.chargeMemory(r, cap(r.buffer)); p != nil {
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
			if b, p = g.growBuffer(r, b, limit, began); p != nil {
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

// growBuffer doubles the buffer, up to the limit.
func (g *Gateway) growBuffer(r *request, b []byte, limit int, began time.Time) ([]byte, *api.Problem) {
	size := max(2*cap(b), firstGrown)
	if length := int(r.ContentLength); length >= len(b) {
		size = min(size, length+1) // one byte more, to see the end without another growth
	}
	size = min(size, limit+1)
	// The old buffer stays charged, because it takes memory until the next collection.
	if p := g.chargeMemory(r, size); p != nil {
		return nil, p
	}
	control := http.NewResponseController(&r.answer)
	late := g.opt.Limits.bodyDeadline(began, size)
	// If the connection has no deadlines, net/http's own stays in force.
	_, _ = control.SetReadDeadline(late), control.SetWriteDeadline(late.Add(g.opt.Limits.answerTime()))
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
	return invalidRequest("read the body: " + err.Error() + "; send as many bytes as Content-Length says, or chunks as in RFC 9112")
}

const (
	flowStep    = 1 << 20 // bytes that must move within the time for a body of that size
	flowBuffer  = 128 << 10
	storeWithin = 5 * time.Minute // time for the store to take a complete body
)

// bodyTransfer lets a request take any time while bytes move, because a part of a large file may
// take minutes on a slow line. The connection's deadlines are extended after each step, so a
// stalled request is cut off.
type bodyTransfer struct {
	g     *Gateway
	c     *http.ResponseController
	body  io.Reader
	left  int64 // bytes of the body that are left; negative if unknown
	moved int
	err   error // error that ended the body, except io.EOF
}

// newTransfer returns the transfer of a request's body, and charges its buffer.
func (g *Gateway) newTransfer(r *request) (*bodyTransfer, *api.Problem) {
	if p := g.chargeMemory(r, flowBuffer); p != nil {
		return nil, p
	}
	f := &bodyTransfer{g: g, c: http.NewResponseController(&r.answer), body: r.Body, left: r.ContentLength}
	f.extend()
	return f, nil
}

func (f *bodyTransfer) extend() {
	f.left -= int64(f.moved)
	f.moved = 0
	step := int64(flowStep)
	if f.left >= 0 {
		step = min(step, f.left)
	}
	late := f.g.opt.Limits.bodyDeadline(time.Now(), int(step))
	// If the connection has no deadlines, net/http's own stays in force.
	_, _ = f.c.SetReadDeadline(late), f.c.SetWriteDeadline(late.Add(f.g.opt.Limits.answerTime()))
}

// Read reads from the body.
func (f *bodyTransfer) Read(to []byte) (int, error) {
	n, err := f.body.Read(to)
	if f.moved += n; f.moved >= flowStep {
		f.extend()
	}
	if errors.Is(err, io.EOF) {
		f.setFinalDeadlines()
	} else if err != nil {
		f.err = err
	}
	return n, err
}

// setFinalDeadlines sets the deadlines for the time in which the store saves the complete body.
// With the old read deadline, net/http would end the request's context.
func (f *bodyTransfer) setFinalDeadlines() {
	_, _ = f.c.SetReadDeadline(time.Time{}), f.c.SetWriteDeadline(time.Now().Add(storeWithin+f.g.opt.Limits.Write))
}

// sendWithin gives the answer the time for one more step.
func (f *bodyTransfer) sendWithin() {
	f.moved = 0
	_ = f.c.SetWriteDeadline(f.g.opt.Limits.bodyDeadline(time.Now(), flowStep).Add(f.g.opt.Limits.Write))
}

// copyTo copies a reader to the answer. The last piece is sent only after the reader has confirmed
// all bytes at its end. If the bytes are wrong, the answer is cut short. The result read is the
// error of the reader, and sent is the error of the connection.
func (f *bodyTransfer) copyTo(w io.Writer, from io.Reader) (read, sent error) {
	_ = f.c.SetReadDeadline(time.Time{}) // the old deadline would end the context, although the request is complete
	f.sendWithin()
	now, next := make([]byte, 0, flowBuffer/2), make([]byte, flowBuffer/2)
	for {
		n, err := readFull(from, next[:cap(next)])
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

func (f *bodyTransfer) write(w io.Writer, b []byte) error {
	if f.moved += len(b); f.moved >= flowStep {
		f.sendWithin()
	}
	_, err := w.Write(b)
	return err
}

// readFull reads until the buffer is full or there is an error, which it returns unchanged. With
// io.ReadFull, a normal end would look like the reader's own io.ErrUnexpectedEOF.
func readFull(from io.Reader, to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = from.Read(to[n:])
		n += k
	}
	return n, err
}

// memoryLimit bounds the memory of the requests under way, of all callers together and of each
// caller. A request never waits for room, because a waiting request would hold a connection. A
// refused request can be sent again.
type memoryLimit struct {
	limits *Limits

	mu      sync.Mutex
	taken   int64
	callers map[string]int64
}

// callersKept is the number of callers without a request that are remembered, so that frequent
// callers cost no allocation.
const callersKept = 1024

// take takes n bytes for a caller. Without a caller's name, only the common limit applies.
func (o *memoryLimit) take(caller string, n int64) *api.Problem {
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

func (o *memoryLimit) give(caller string, n int64) {
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

// takenBytes returns the number of bytes that are taken now.
func (o *memoryLimit) takenBytes() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return float64(o.taken)
}

// chargeMemory takes n more bytes of room for a request. The bytes are returned after the answer.
func (g *Gateway) chargeMemory(r *request, n int) *api.Problem {
	name := r.callerName()
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

// eventPost holds the events of one request until Kafka has acknowledged them. An eventPost and its
// items are used again only when the outcome of every event is known, because until then the
// producer may still call the items.
type eventPost struct {
	items []*item // the first used items are in use
	used  int

	done chan struct{} // gets a value when the last outcome is known
	late *time.Timer

	mu     sync.Mutex
	began  time.Time // time at which sending began
	left   int       // number of sent events without an outcome
	failed bool      // an event failed for a reason that affects other events too
	given  bool      // the wait has ended without all outcomes
}

// item is one event of a post.
type item struct {
	g    *Gateway
	post *eventPost
	own  broker.View
	text []byte // buffer for position

	header [1]string // value of the position header

	view     *broker.View // own, or the view from a batch's reader
	to       *publishTarget
	size     int64
	track    *track                      // track from which size was taken
	settle   func(broker.Receipt, error) // i.settled, bound once
	problem  *api.Problem                // reason why it was not sent
	repeated bool                        // the event is already on the stream
	question dedupe.Question             // question to the memory of recent events
	first    *item                       // item of the same event, earlier in the same post

	told    bool // the outcome is known; guarded by post.mu
	receipt broker.Receipt
	err     error
	after   time.Duration // time from the begin of sending to the error
}

const itemsKept = 1024 // items of a large batch that are kept for the next request

func newPost() *eventPost {
	p := &eventPost{done: make(chan struct{}, 1), late: time.NewTimer(time.Hour)}
	p.late.Stop()
	return p
}

// addItem takes an item into use.
func (p *eventPost) addItem(g *Gateway) *item {
	if p.used == len(p.items) {
		i := &item{g: g, post: p}
		i.settle = i.handleOutcome
		p.items = append(p.items, i)
	}
	i := p.items[p.used]
	i.view = &i.own
	p.used++
	return i
}

func (p *eventPost) all() []*item { return p.items[:p.used] }

// reset makes the post ready for the next request.
func (p *eventPost) reset() {
	for _, i := range p.all() {
		*i = item{g: i.g, post: p, settle: i.settle, text: i.text, own: broker.View{Extensions: i.own.Extensions[:0]}}
	}
	if len(p.items) > itemsKept {
		clear(p.items[itemsKept:])
		p.items = p.items[:itemsKept]
	}
	p.used, p.failed, p.given = 0, false, false
}

// expectEvents sets the number of events that are about to be sent.
func (p *eventPost) expectEvents(n int, now time.Time) {
	p.mu.Lock()
	p.left, p.began = n, now
	p.mu.Unlock()
}

// waitForOutcomes waits until all outcomes are known, for at most d, or until over is closed. After
// a timeout, events without an outcome are in doubt, and the post must not be used again.
func (p *eventPost) waitForOutcomes(d time.Duration, over <-chan struct{}) {
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

// forbidReuse keeps the post from being used again.
func (p *eventPost) forbidReuse() {
	p.mu.Lock()
	p.left, p.given = p.left+1, true
	p.mu.Unlock()
}

// isReusable reports whether the producer will no longer call the post.
func (p *eventPost) isReusable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

// errBehind is the error of an event that was not sent because an earlier event of its batch was
// not stored. If the batch is published again, each key's events still have the order of the batch.
var errBehind = errors.New("an event before it in the batch was not stored")

// sendWanted sends the wanted items in their order, until an item fails or the time is over.
func (p *eventPost) sendWanted(late time.Time) {
	for n, i := range p.all() {
		switch {
		case !i.isWanted():
		case i.g.isOver():
			i.tell(broker.Receipt{}, broker.ErrClosed)
		case n > 0 && (p.hasSharedFailure() || time.Now().After(late)):
			i.tell(broker.Receipt{}, errBehind)
		default:
			i.send()
		}
	}
}

// hasSharedFailure reports whether an item has failed for a reason that affects other events too.
func (p *eventPost) hasSharedFailure() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// send waits for room and passes an item to the producer. While it waits, an earlier item may fail.
func (i *item) send() {
	ctx := i.g.patience.newContext()
	to, producer := i.to, i.g.opt.Producer
	track, err := i.g.window.take(ctx, to.lane, producer.PartitionOf(to.stream, i.view), i.size)
	if err == nil && i.post.hasSharedFailure() {
		i.g.window.release(track, i.size)
		err = errBehind
	}
	if err != nil {
		i.tell(broker.Receipt{}, err)
		return
	}
	i.track = track
	producer.Send(ctx, to.stream, i.view, i.settle)
}

// handleOutcome handles the outcome of an event. The producer calls handleOutcome even if the
// publisher no longer waits. The event must be marked as known before tell is called, because after
// tell the bytes of the view may be used again. The window's bytes are released after tell, so that
// the next admitted event sees a failure.
func (i *item) handleOutcome(r broker.Receipt, err error) {
	window, track, size := &i.g.window, i.track, i.size
	if err == nil {
		i.g.opt.Repeats.Mark(i.to.stream, i.to.dedupe, i.view.Source, i.view.ID)
	}
	i.tell(r, err)
	window.release(track, size)
}

func (i *item) tell(r broker.Receipt, err error) {
	i.to.countOutcome(i.g.log, err)
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

// storeEvents sends a request's acceptable events in their order, and then waits for all of them.
func (g *Gateway) storeEvents(r *request) {
	g.findRepeats(r)
	n := 0
	for _, i := range r.post.all() {
		if i.isWanted() {
			n++
		}
	}
	if n == 0 {
		return
	}
	began, limits := time.Now(), &g.opt.Limits
	r.post.expectEvents(n, began)
	r.post.sendWanted(began.Add(limits.Ack))
	// A batch that has waited for room gets less time, because its publisher would not wait longer.
	r.post.waitForOutcomes(min(limits.Ack, time.Until(began.Add(limits.Room+limits.Ack))), g.over)
	r.waiting = time.Since(began)
	g.metrics.ack.Observe(r.waiting.Seconds())
}

// isWanted reports whether the event must be sent.
func (i *item) isWanted() bool { return i.problem == nil && !i.repeated && i.first == nil }

// sizeOf is the size of an event in the producer's buffer, or a little more: its data, its
// attributes and a second copy of its key. So the buffer has room for each event that the window
// admits.
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

// A record also has the names of its headers, and lengths.
const (
	eventHead     = 128
	extensionHead = 8
)

// setAuthID sets an event's authid to its publisher, if known. A publisher may not use another
// publisher's name.
func setAuthID(v *broker.View, name string) *api.Problem {
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

// findRepeats finds the repeats: events that are already on the stream or occur earlier in the same
// batch. The first event with an id counts; all later events with that id are repeats, whatever
// they contain.
func (g *Gateway) findRepeats(r *request) {
	items := r.post.all()
	if len(items) > 1 {
		recogniseWithin(items)
	}
	for _, i := range items {
		if i.isWanted() {
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

// recogniseWithin finds the events that are repeated within a batch.
func recogniseWithin(items []*item) {
	type event struct {
		to         *publishTarget
		source, id string
	}
	first := make(map[event]*item, len(items))
	for _, i := range items {
		if !i.isWanted() || i.to.dedupe == 0 {
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
