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

// body reads the request's body of at most limit bytes; over is the refusal of
// a longer one. It believes no
// Content-Length: the buffer grows with what has come, twofold each time, and is
// paid for as it grows.
//
// Whoever is slow is given up, but not a big upload on a slow line: net/http's
// ReadTimeout bounds what fits the small buffer, and then each time the buffer
// has filled up, the time is set within which that much more has to come.
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
		return nil, g.unread(r, err)
	case len(b) > limit:
		return nil, over()
	}
	return b, nil
}

// grow makes room for as much again as has come, but not for more than may.
func (g *Gateway) grow(r *request, b []byte, limit int, began time.Time) ([]byte, *api.Problem) {
	size := max(2*cap(b), firstGrown)
	if length := int(r.ContentLength); length >= len(b) {
		size = min(size, length+1) // one more, to see the end without growing again
	}
	size = min(size, limit+1)
	if p := g.charge(r, size-cap(b)); p != nil {
		return nil, p
	}
	control := http.NewResponseController(&r.answer)
	late := g.opt.Limits.body(began, size)
	// Where the connection knows no deadline, net/http's own stays in force.
	_, _ = control.SetReadDeadline(late), control.SetWriteDeadline(late.Add(g.opt.Limits.answer()))
	grown := make([]byte, len(b), size)
	copy(grown, b)
	return grown, nil
}

// unread tells why a body could not be read to its end. What is left of it
// would be taken for the next request, so the connection ends.
func (g *Gateway) unread(r *request, err error) *api.Problem {
	r.answer.Header().Set("Connection", "close")
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.metrics.refused.slow.Inc()
		return tooSlow(&g.opt.Limits)
	}
	return invalidRequest("read the body: " + err.Error() + "; send as much as Content-Length says, or chunks as RFC 9112 has them")
}

const (
	flowStep    = 1 << 20 // has to move within the time that a body of that size has
	flowBuffer  = 128 << 10
	storeWithin = 5 * time.Minute // the store may take over what has come
)

// flow lets a request take as long as it likes while bytes move, and cuts it
// when they do not: a part of a large file may be minutes on a slow line. It
// sets the connection's deadlines anew each time that a step has moved.
type flow struct {
	g     *Gateway
	c     *http.ResponseController
	body  io.Reader
	left  int64 // of the body; negative where nobody said
	moved int
	err   error // that ended the body, but for its end
}

// flowing is the flow of a request. Its memory is the buffer that it moves
// through.
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
	// Where the connection knows no deadline, net/http's own stays in force.
	_, _ = f.c.SetReadDeadline(late), f.c.SetWriteDeadline(late.Add(f.g.opt.Limits.answer()))
}

// Read reads the body.
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

// rest is for when nothing moves for a good reason: all has come, and the store
// takes it over. Net/http would end the request's context by the old deadline.
func (f *flow) rest() {
	_, _ = f.c.SetReadDeadline(time.Time{}), f.c.SetWriteDeadline(time.Now().Add(storeWithin+f.g.opt.Limits.Write))
}

// sendWithin gives an answer the time that a step of it has, whatever came before.
func (f *flow) sendWithin() {
	f.moved = 0
	_ = f.c.SetWriteDeadline(f.g.opt.Limits.body(time.Now(), flowStep).Add(f.g.opt.Limits.Write))
}

// send writes what a reader has, the last of it only when the reader has said at
// its end that the bytes are the right ones: an answer that is not is cut short.
// The two errors are the reader's and the caller's.
func (f *flow) send(w io.Writer, from io.Reader) (read, sent error) {
	_ = f.c.SetReadDeadline(time.Time{}) // it would end the context, though the caller has said all
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

// fill reads until the buffer is full or there is an error, which it tells as it
// is: io.ReadFull takes an end for one that its reader told of.
func fill(from io.Reader, to []byte) (n int, err error) {
	for n < len(to) && err == nil {
		var k int
		k, err = from.Read(to[n:])
		n += k
	}
	return n, err
}

// room bounds the memory of the requests under way, of all and of each caller.
// Nobody waits for it: who is refused can come again, and who waited would hold
// a connection.
type room struct {
	limits *Limits

	mu      sync.Mutex
	taken   int64
	callers map[string]int64
}

// callersKept is how many callers without a request are remembered, so that
// those who come again and again cost no allocation.
const callersKept = 1024

// take takes n bytes for a caller. One without a name is everybody, and so has
// no share of its own.
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

// bytes is how much is taken now.
func (o *room) bytes() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return float64(o.taken)
}

// charge has a request pay for n bytes more. They are given back when it has
// been answered.
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

// post is the events of one request on their way to the log. It is used again
// and again, and so is all that hangs on it, but only if every event has been
// told: until then the producer may still call it.
type post struct {
	items []*item // those in use come first
	used  int

	done chan struct{} // gets one when the last event has been told
	late *time.Timer

	mu     sync.Mutex
	began  time.Time // to send
	left   int       // events sent and not yet told
	failed bool      // one of them, for a reason that others share
	given  bool      // up: nobody waits any more
}

// item is one event of a post.
type item struct {
	g    *Gateway
	post *post
	own  broker.View
	text []byte // scratch

	header [1]string // the value of the answer's position

	view     *broker.View // own, or one that the reader of a batch made
	to       *target
	size     int64
	track    *track                      // where size is taken
	settle   func(broker.Receipt, error) // i.settled, bound once
	problem  *api.Problem                // why it was not sent
	repeated bool                        // it was here before
	question dedupe.Question             // to the memory of what was here
	first    *item                       // it is this one's repeat, of the same post

	told    bool // under post.mu
	receipt broker.Receipt
	err     error
	after   time.Duration // the error came
}

const itemsKept = 1024 // of a large batch's, for the next request

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

// expect says how many events are about to be sent.
func (p *post) expect(n int, now time.Time) {
	p.mu.Lock()
	p.left, p.began = n, now
	p.mu.Unlock()
}

// wait waits until every event has been told, or as long as it may, or until
// the gateway cannot wait any more. Then those without an answer are in doubt,
// and the post is not to be used again.
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
		<-p.done // the last one was told in the same moment
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

// reusable tells whether nobody will call the post any more.
func (p *post) reusable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left == 0
}

// errBehind is why an event was not sent: one before it in its batch was not
// stored. Who publishes the batch again then finds the events of a key in the
// order that they have there.
var errBehind = errors.New("an event before it in the batch was not stored")

// send sends the wanted items in their order, until one fails or it is late.
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

// stuck tells whether an item has failed already, for a reason that others
// share.
func (p *post) stuck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// send hands an item over to the producer, when there is room for it. One
// before it may fail meanwhile.
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

// settled is what the producer calls when it knows what became of the event,
// whether or not its publisher still waits. The mark is made before the bytes
// that the view points into can be used again, since it comes before tell; and
// room is given only after, so that who gets in by it knows of a failure.
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

// store sends a request's events that nothing speaks against, in their order,
// and waits for all of them at once.
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
	// A batch that found room only bit by bit has less time left, or nobody would
	// be there for its answer.
	r.post.wait(min(limits.Ack, time.Until(began.Add(limits.Room+limits.Ack))), g.over)
	r.waiting = time.Since(began)
	g.metrics.ack.Observe(r.waiting.Seconds())
}

// wanted tells whether the event is to be sent.
func (i *item) wanted() bool { return i.problem == nil && !i.repeated && i.first == nil }

// sizeOf is what an event takes on its way, or a little more: its data and
// attributes, and its key once again. The producer's buffer counts the same, so
// what the window admits has room there.
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

// A record has besides: the names of headers, and lengths.
const (
	eventHead     = 128
	extensionHead = 8
)

// signed has an event say who published it, where that is known. Nobody may
// sign for another.
func signed(v *broker.View, name string) *api.Problem {
	if name == "" {
		return nil
	}
	as, given := v.Attribute(tidemill.AttrAuthID)
	switch {
	case !given:
		if err := v.Set(tidemill.AttrAuthID, name); err != nil {
			return unreadable(err)
		}
	case as != name:
		return forgedSignature(as, name)
	}
	return nil
}

// recognise finds the events that were here before: on the stream, or earlier
// in the same batch. The first counts, so all others are repeats whatever they
// hold.
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
	ctx := context.Background() // the memory is impatient, and a publisher that hangs up is not to have its repeats stored
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
