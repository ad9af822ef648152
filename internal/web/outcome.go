package web

import (
	"errors"
	"net/http"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
)

// outcome is what became of an event: it is stored, or it was here before, or
// there is a problem. What repeats an event of the same batch shares its fate.
func (i *item) outcome() (p *api.Problem, repeated bool) {
	switch {
	case i.problem != nil:
		return i.problem, false
	case i.first != nil:
		p, _ = i.first.outcome()
		return p, p == nil
	case i.err != nil:
		return i.g.failed(i), false
	}
	return nil, i.repeated
}

// failed is the problem of an event that was not acknowledged. It is the one
// place that knows which of Kafka's errors a publisher can do what about.
func (g *Gateway) failed(i *item) *api.Problem {
	switch {
	case errors.Is(i.err, broker.ErrInDoubt): // before all others, which it may wrap
		return inDoubt(i.view.ID, i.after)
	case errors.Is(i.err, broker.ErrTooLarge):
		return tooLarge(i.err.Error())
	case attributeOf(i.err) != "":
		return unreadable(i.err)
	case errors.Is(i.err, broker.ErrClosed):
		return unavailable("this gateway is closing; publish it again, and another one or the next one takes it")
	case errors.Is(i.err, broker.ErrNoStream): // the config has it, so it is Kafka that lost it
		return unavailable("stream " + i.to.stream + " is in the config but not in Kafka; /readyz says what is missing")
	}
	// What else it is, is in the log: it may name servers that a publisher has no business with.
	return unavailable("stream " + i.to.stream + " takes no more events now; this one is not stored; publish it again a little later")
}

// answer is what a batch's answer says of the event.
func (i *item) answer() api.Answer {
	a := api.Answer{ID: i.view.ID, Status: http.StatusAccepted}
	switch problem, repeated := i.outcome(); {
	case problem != nil:
		a.Status, a.Problem = problem.Status, problem
	case repeated:
		a.Repeated = true
	default:
		a.Position = &api.Position{Stream: i.receipt.Stream, Partition: i.receipt.Partition, Offset: i.receipt.Offset}
	}
	return a
}
