package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
)

const batchType = "application/cloudevents-batch+json"

// batch is events on their way in one request.
type batch struct {
	body   []byte // a JSON array without its end
	events []pending
}

// pending is an event that has no answer yet.
type pending struct {
	id         string
	start, end int // of its JSON in the body
	done       func(Receipt, error)
}

func (b *batch) add(v *broker.View, done func(Receipt, error)) {
	b.comma()
	start := len(b.body)
	b.body = broker.AppendStructured(b.body, v)
	b.events = append(b.events, pending{v.ID, start, len(b.body), done})
}

func (b *batch) comma() {
	if len(b.events) == 0 {
		b.body = append(b.body[:0], '[')
		return
	}
	b.body = append(b.body, ',')
}

// some is a batch of a few of this one's events, in their order.
func (b *batch) some(events []pending) *batch {
	s := &batch{}
	for _, e := range events {
		s.comma()
		start := len(s.body)
		s.body = append(s.body, b.body[e.start:e.end]...)
		s.events = append(s.events, pending{e.id, start, len(s.body), e.done})
	}
	return s
}

// fail gives all events one answer.
func (b *batch) fail(stream string, err error) {
	for _, e := range b.events {
		e.done(Receipt{}, ofEvent(stream, e.id, err))
	}
}

// send asks until every event has an answer that stays. Only those that have
// none are sent again, in their order.
func (p *patience) send(ctx context.Context, stream string, b *batch) {
	path, err := toStream(stream)
	if err != nil {
		b.fail(stream, err)
		return
	}
	for len(b.events) > 0 {
		a, err := p.ask(ctx, request{method: http.MethodPost, path: path,
			header: http.Header{"Content-Type": {batchType}}, body: append(b.body, ']')})
		if err != nil {
			b.fail(stream, err)
			return
		}
		if a.status == http.StatusRequestEntityTooLarge && len(b.events) > 1 {
			p.halve(ctx, stream, b)
			return
		}
		answers, err := p.g.answersOf(a, len(b.events))
		if err != nil {
			b.fail(stream, p.given(err))
			return
		}
		after, _ := passing(a)
		b = p.settle(ctx, stream, b, answers, after)
	}
}

// halve passes a limit below ours: of the gateway, or of what stands before it.
func (p *patience) halve(ctx context.Context, stream string, b *batch) {
	middle := len(b.events) / 2
	p.send(ctx, stream, b.some(b.events[:middle]))
	p.send(ctx, stream, b.some(b.events[middle:]))
}

// settle hands the answers out. What is left is to be tried again, and its time
// to wait is over.
func (p *patience) settle(ctx context.Context, stream string, b *batch, answers []api.Answer, after time.Duration) *batch {
	var again []pending
	var last error
	for i, e := range b.events {
		r, err := outcome(answers[i])
		if passingStatus(answers[i].Status) {
			again, last = append(again, e), err
			continue
		}
		if err != nil {
			err = ofEvent(stream, e.id, err)
		}
		e.done(r, err)
	}
	rest := b.some(again)
	if len(again) == 0 {
		return rest
	}
	if ended := p.pause(ctx, after, last); ended != nil {
		rest.fail(stream, p.given(ended))
		return &batch{}
	}
	return rest
}

// answersOf finds the events' answers in a success and in a refusal alike.
func (g *Gateway) answersOf(a answer, events int) ([]api.Answer, error) {
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
		return nil, fmt.Errorf("%s answered %s with %d answers to %d events: is a gateway of Tidemill there?", g.base, statusText(a.status), len(answers), events)
	}
	return nil, g.fault(a)
}

// outcome is one event's answer as a receipt or an error.
func outcome(a api.Answer) (Receipt, error) {
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
	return Receipt{}, fmt.Errorf("the gateway answered %s and nothing more", statusText(a.Status))
}
