package runs

import (
	"context"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// byForget is the component that ends what belongs to a key.
const byForget = "forget"

// Forgetting is the end of a key for one recipe.
type Forgetting struct {
	Recipe, Key string
	By, Reason  string
	Cause       tidemill.Cause // the fact that asked: the end is named after it
	Correlation string
	Trace       string // traceparent
}

// Forget ends what a recipe makes for a key that has gone, and forgets what it
// has made. The mark is where the fact lies: a run that began before it counts
// no more. What waits or rests has gone with that; an attempt under way is told
// to end, as by [Foreman.Cancel], and the making has it until it has.
func (f *Foreman) Forget(ctx context.Context, r Forgetting) (tidemill.Mark, *tidemill.Making, error) {
	if err := CheckKey(r.Key); err != nil {
		return tidemill.Mark{}, nil, fmt.Errorf("forget what recipe %s has made: %w", r.Recipe, err)
	}
	where, m, err := f.put(ctx, forgottenFact(r), f.now())
	return tidemill.Mark{Partition: where.Partition, Offset: where.Offset}, m, err
}

// forgottenFact names no run: it is about all of the key's. The recipe may have
// left the config.
func forgottenFact(r Forgetting) fact {
	a := fact{typ: tidemill.TypeRunForgotten, component: byForget,
		id:     tidemill.ID("forgotten", r.Recipe, r.Key, r.Cause.Source, r.Cause.ID),
		recipe: r.Recipe, key: r.Key, cause: r.Cause, chain: chain{Correlation: r.Correlation, Trace: r.Trace},
		data: tidemill.RunForgotten{Cause: r.Cause, Reason: r.Reason}}
	a.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: r.By}}
	return a
}

// forgotten is a run whose key has gone while its last attempt was ending: with
// that nobody knows it any more.
func forgotten(run *tidemill.Run) *tidemill.Run {
	r := *run
	r.State, r.Event, r.Plan = tidemill.RunCancelled, nil, nil
	if r.Cancel != nil {
		r.Reason = r.Cancel.Reason
	}
	return &r
}
