package web

import (
	"errors"
	"net/http"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/cehttp"
)

// A batch of ten thousand empty objects is small and its answer is not: every
// event pays for what is kept about it, some at a time.
const (
	batchItem   = 1 << 10
	itemsCharge = 64
)

// postBatch stores the events of a batch and answers for each. One that is
// refused does not keep the others from being stored.
func (g *Gateway) postBatch(w http.ResponseWriter, r *request, p *plan, to *target) *api.Problem {
	body, problem := g.body(r, g.opt.Limits.Batch, g.batchTooLarge)
	if problem != nil {
		return problem
	}
	err := cehttp.ReadBatch(r.Header, body, g.opt.Limits.BatchEvents, func(n int, v *broker.View, err error) {
		if n%itemsCharge == 0 && problem == nil {
			problem = g.charge(r, itemsCharge*batchItem)
		}
		if problem == nil {
			i := r.post.add(g)
			i.view = v
			i.judge(r, p, to, err)
		}
	})
	switch {
	case problem != nil:
		return problem
	case errors.Is(err, broker.ErrTooMany):
		return tooMany(g.opt.Limits.BatchEvents)
	case err != nil:
		return unreadable(err)
	}
	g.store(r)
	text, stored := appendAnswers(make([]byte, 0, answerRoom*(1+len(r.post.all()))), r.post.all())
	if !stored {
		return refusedOf(r.post.all())
	}
	writeText(w, http.StatusAccepted, jsonType, text)
	return nil
}

// refusedOf is the problem of a batch of which an event was refused. Its status
// tells whether to publish the batch again would mend anything.
func refusedOf(items []*item) *api.Problem {
	refused, status := 0, http.StatusBadRequest
	answers := make([]api.Answer, len(items))
	for n, i := range items {
		a := i.answer()
		answers[n] = a
		if a.Problem == nil {
			continue
		}
		refused++
		if a.Status == http.StatusServiceUnavailable {
			status = a.Status
		}
	}
	return refusedBatch(status, refused, answers)
}
