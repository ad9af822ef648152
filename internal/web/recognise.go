package web

import (
	"context"

	"tidemill.dev/internal/repeats"
)

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
		if i.question != (repeats.Question{}) && i.question.Seen(ctx) {
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
