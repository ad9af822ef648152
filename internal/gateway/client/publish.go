package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
)

// Receipt is the result of publishing an event.
type Receipt struct {
	broker.Receipt      // position of the event, if it was stored now
	Repeated       bool // true if the event was on the stream before, so that nothing was stored
}

// Publish publishes one event and waits until all in-sync replicas have stored it. If stream is
// empty, the event goes to the stream of its type. Retries have the same id, so the gateway
// recognises them.
func (g *Gateway) Publish(ctx context.Context, stream string, v *broker.View) (Receipt, error) {
	r, err := g.publish(ctx, stream, v)
	if err != nil {
		return r, ofEvent(stream, v.ID, err)
	}
	return r, nil
}

func (g *Gateway) publish(ctx context.Context, stream string, v *broker.View) (Receipt, error) {
	if err := v.Validate(); err != nil {
		return Receipt{}, err
	}
	path, err := toStream(stream)
	if err != nil {
		return Receipt{}, err
	}
	h := http.Header{}
	body := cehttp.WriteBinary(h, v)
	p := g.publishing()
	a, err := p.sendUntilFinal(ctx, request{method: http.MethodPost, path: path, header: h, body: body})
	if err != nil {
		return Receipt{}, err
	}
	if a.status != http.StatusAccepted {
		return Receipt{}, p.withDoubt(g.failureError(a))
	}
	return g.receiptOf(a)
}

// receiptOf reads a successful answer. An answer without a position is an error, because a web
// server may answer 200 to any path without storing the event.
func (g *Gateway) receiptOf(a wholeAnswer) (Receipt, error) {
	if a.header.Get(api.HeaderRepeated) == "true" {
		return Receipt{Repeated: true}, nil
	}
	at, err := parsePosition(a.header.Get(api.HeaderPosition))
	if err != nil {
		return Receipt{}, fmt.Errorf("%s answered %s without the position of the event: is it a gateway of Tidemill?", g.base, statusText(a.status))
	}
	return Receipt{Receipt: at}, nil
}

var errPosition = errors.New("position is not stream/partition/offset")

func parsePosition(text string) (broker.Receipt, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || tidemill.CheckStream(parts[0]) != nil {
		return broker.Receipt{}, errPosition
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil || partition < 0 {
		return broker.Receipt{}, errPosition
	}
	offset, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || offset < -1 {
		return broker.Receipt{}, errPosition
	}
	return broker.Receipt{Stream: parts[0], Partition: int32(partition), Offset: offset}, nil
}

func ofEvent(stream, id string, err error) error {
	if stream == "" {
		return fmt.Errorf("publish event %s: %w", id, err)
	}
	return fmt.Errorf("publish event %s to stream %s: %w", id, stream, err)
}

const batchType = "application/cloudevents-batch+json"

// eventBatch holds the events of one request.
type eventBatch struct {
	body   []byte // a JSON array without its end
	events []pendingEvent
}

// pendingEvent is an event without an answer.
type pendingEvent struct {
	id         string
	start, end int // range of the event's JSON in the body
	done       func(Receipt, error)
}

func (b *eventBatch) add(v *broker.View, done func(Receipt, error)) {
	b.comma()
	start := len(b.body)
	b.body = broker.AppendStructured(b.body, v)
	b.events = append(b.events, pendingEvent{v.ID, start, len(b.body), done})
}

func (b *eventBatch) comma() {
	if len(b.events) == 0 {
		b.body = append(b.body[:0], '[')
		return
	}
	b.body = append(b.body, ',')
}

// subset returns a batch with some of the events, in their order.
func (b *eventBatch) subset(events []pendingEvent) *eventBatch {
	s := &eventBatch{}
	for _, e := range events {
		s.comma()
		start := len(s.body)
		s.body = append(s.body, b.body[e.start:e.end]...)
		s.events = append(s.events, pendingEvent{e.id, start, len(s.body), e.done})
	}
	return s
}

// failAll answers all events with an error.
func (b *eventBatch) failAll(stream string, err error) {
	for _, e := range b.events {
		e.done(Receipt{}, ofEvent(stream, e.id, err))
	}
}

// sendBatch sends the batch until every event has a final answer. Only events without a final
// answer are sent again, in their order.
func (p *retrier) sendBatch(ctx context.Context, stream string, b *eventBatch) {
	path, err := toStream(stream)
	if err != nil {
		b.failAll(stream, err)
		return
	}
	for len(b.events) > 0 {
		a, err := p.sendUntilFinal(ctx, request{method: http.MethodPost, path: path,
			header: http.Header{"Content-Type": {batchType}}, body: append(b.body, ']')})
		if err != nil {
			b.failAll(stream, err)
			return
		}
		if a.status == http.StatusRequestEntityTooLarge && len(b.events) > 1 {
			p.sendHalves(ctx, stream, b)
			return
		}
		answers, err := p.g.answersOf(a, len(b.events))
		if err != nil {
			b.failAll(stream, p.withDoubt(err))
			return
		}
		after, _ := isTemporary(a)
		b = p.deliverAnswers(ctx, stream, b, answers, after)
	}
}

// sendHalves sends a batch that is too large for the gateway or a proxy in two halves.
func (p *retrier) sendHalves(ctx context.Context, stream string, b *eventBatch) {
	middle := len(b.events) / 2
	p.sendBatch(ctx, stream, b.subset(b.events[:middle]))
	p.sendBatch(ctx, stream, b.subset(b.events[middle:]))
}

// deliverAnswers delivers the final answers, and returns the events to send again. Before it
// returns, it waits for the pause before the next attempt.
func (p *retrier) deliverAnswers(ctx context.Context, stream string, b *eventBatch, answers []api.Answer, after time.Duration) *eventBatch {
	var again []pendingEvent
	var last error
	for i, e := range b.events {
		r, err := toReceipt(answers[i])
		if passingStatus(answers[i].Status) {
			again, last = append(again, e), err
			continue
		}
		if err != nil {
			err = ofEvent(stream, e.id, err)
		}
		e.done(r, err)
	}
	rest := b.subset(again)
	if len(again) == 0 {
		return rest
	}
	if ended := p.waitBeforeRetry(ctx, after, last); ended != nil {
		rest.failAll(stream, p.withDoubt(ended))
		return &eventBatch{}
	}
	return rest
}

// answersOf returns the events' answers from a success or a problem.
func (g *Gateway) answersOf(a wholeAnswer, events int) ([]api.Answer, error) {
	var answers []api.Answer
	if p, ok := problemOf(a); ok {
		answers = p.Events
	} else if a.status == http.StatusAccepted {
		var all api.Answers
		if err := json.Unmarshal(a.body, &all); err == nil {
			answers = all.Events
		}
	}
	switch {
	case len(answers) == events:
		return answers, nil
	case a.status == http.StatusAccepted || len(answers) > 0:
		return nil, fmt.Errorf("%s answered %s with %d answers to %d events: is it a gateway of Tidemill?", g.base, statusText(a.status), len(answers), events)
	}
	return nil, g.failureError(a)
}

// toReceipt turns one event's answer into a receipt or an error.
func toReceipt(a api.Answer) (Receipt, error) {
	switch {
	case a.Status == http.StatusAccepted && a.Repeated:
		return Receipt{Repeated: true}, nil
	case a.Status == http.StatusAccepted && a.Position != nil:
		return Receipt{Receipt: broker.Receipt(*a.Position)}, nil
	case a.Problem != nil:
		p := *a.Problem
		p.Status = a.Status
		return Receipt{}, newRefusal(&p)
	}
	return Receipt{}, fmt.Errorf("the gateway answered %s without a body", statusText(a.Status))
}

// The limits of one request. Larger requests are not faster, and their answers take longer. The
// limits of the gateway and of most proxies are higher.
const (
	batchEvents = 2000
	batchBytes  = 768 << 10
)

// Batcher publishes many events in batches. One request runs at a time, so that all events stay in
// order. During a request, the next batch is filled. So the events of a slow caller are sent one by
// one, and the events of a fast caller in full batches. A Batcher is safe for concurrent use.
type Batcher struct {
	g      *Gateway
	stream string

	mu      sync.Mutex
	filling *eventBatch
	busy    bool          // true while a request runs
	moved   chan struct{} // closed and replaced each time that a batch is taken or ends
	wake    chan struct{}
	closed  bool

	ctx     context.Context // context of the requests; ended by Close
	stop    context.CancelCauseFunc
	running sync.WaitGroup
}

// Batcher returns a Batcher that publishes to a stream, or, if stream is empty, each event to the
// stream of its type. The caller must call Close.
func (g *Gateway) Batcher(stream string) *Batcher {
	b := &Batcher{g: g, stream: stream, filling: &eventBatch{}, moved: make(chan struct{}), wake: make(chan struct{}, 1)}
	b.ctx, b.stop = context.WithCancelCause(context.Background())
	b.running.Go(b.run)
	return b
}

// Send adds an event to the next batch and returns. Only while that batch is full, Send waits,
// until the context ends. The event's bytes are copied. done is called once, from any goroutine,
// and must not block.
func (b *Batcher) Send(ctx context.Context, v *broker.View, done func(Receipt, error)) {
	err := v.Validate()
	if err == nil {
		err = b.put(ctx, v, done)
	}
	if err != nil {
		done(Receipt{}, ofEvent(b.stream, v.ID, err))
	}
}

func (b *Batcher) put(ctx context.Context, v *broker.View, done func(Receipt, error)) error {
	for {
		moved, err := b.tryPut(v, done)
		if err != nil || moved == nil {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryPut adds an event. If the batch is full, it returns a channel to wait on.
func (b *Batcher) tryPut(v *broker.View, done func(Receipt, error)) (moved <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, broker.ErrClosed
	case len(b.filling.events) >= batchEvents || len(b.filling.body) >= batchBytes:
		return b.moved, nil
	}
	b.filling.add(v, done)
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return nil, nil
}

func (b *Batcher) run() {
	for {
		select {
		case <-b.wake:
		case <-b.ctx.Done():
			return
		}
		for full := b.takeBatch(); full != nil; full = b.takeBatch() {
			b.g.publishing().sendBatch(b.ctx, b.stream, full)
		}
	}
}

// takeBatch returns the next batch; nil if no event waits.
func (b *Batcher) takeBatch() *eventBatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.moved)
	b.moved = make(chan struct{})
	if b.busy = len(b.filling.events) > 0; !b.busy {
		return nil
	}
	full := b.filling
	b.filling = &eventBatch{}
	return full
}

// Flush waits until every event has its answer.
func (b *Batcher) Flush(ctx context.Context) error {
	for {
		b.mu.Lock()
		moved, none := b.moved, !b.busy && len(b.filling.events) == 0
		b.mu.Unlock()
		if none {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close flushes until the context ends, and ends the batcher. Events that still have no answer get
// an error.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err := b.Flush(ctx)
	b.stop(broker.ErrClosed)
	b.running.Wait()
	b.mu.Lock()
	left := b.filling
	b.filling = &eventBatch{}
	b.mu.Unlock()
	left.failAll(b.stream, broker.ErrClosed)
	return err
}
