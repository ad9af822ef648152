package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// The components that facts of runs come from.
const (
	byTrain   = "train"   // asked for by an event
	byGateway = "gateway" // by a person, or told by an agent
	byKeeper  = "keeper"  // by nobody: it follows from what is on the log
)

// fact is what is to be said of a run.
type fact struct {
	typ, id, component string
	recipe, key, run   string
	cause              tidemill.Cause
	chain              chain
	attributes         []broker.Attribute
	data               any
}

// chain is what a fact inherits from its cause.
type chain struct {
	Correlation string `json:"correlationid"`
	Trace       string `json:"traceparent"`
	ID          string `json:"id"`
}

// chainOf is what the facts of a run inherit. All of them name the newest event
// that asked for the run as their cause: it is the one whose data it learns from,
// and the one that the run's own state still knows.
func chainOf(r *tidemill.Run) chain {
	c := chain{ID: r.Newest.ID}
	_ = json.Unmarshal(r.Event, &c) // what is no event has no chain; its id is known all the same
	if c.Correlation == "" {
		c.Correlation = c.ID
	}
	return c
}

func of(typ, component string, r *tidemill.Run, data any, id ...string) fact {
	return fact{typ: typ, component: component, id: tidemill.ID(id...), recipe: r.Recipe, key: r.Key, run: r.ID,
		cause: r.Newest, chain: chainOf(r), data: data}
}

func startedFact(r *tidemill.Run, d tidemill.RunStarted) fact {
	number := strconv.Itoa(d.Attempt)
	f := of(tidemill.TypeRunStarted, byKeeper, r, d, "started", r.ID, number, strconv.FormatInt(d.Seen, 10))
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAttempt, Value: number}}
	return f
}

func finishedFact(r *tidemill.Run, component string, d tidemill.RunFinished, at time.Time) fact {
	number := strconv.Itoa(d.Attempt)
	f := of(tidemill.TypeRunFinished, component, r, d, "finished", r.ID, number)
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAttempt, Value: number},
		{Name: tidemill.AttrOutcome, Value: outcomeOf(r, d, at)}}
	if d.Candidate != nil {
		f.attributes = append(f.attributes, broker.Attribute{Name: tidemill.AttrModel, Value: d.Candidate.Model})
	}
	return f
}

func cancelledFact(r *tidemill.Run, by, reason string) fact {
	f := of(tidemill.TypeRunCancelled, byGateway, r, tidemill.RunCancelledData{Reason: reason}, "cancelled", r.ID)
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: by}}
	return f
}

func committedFact(r *tidemill.Run, d tidemill.RunCommitted) fact {
	f := of(tidemill.TypeRunCommitted, byKeeper, r, d, append([]string{"committed", r.ID}, lost(d)...)...)
	f.attributes = []broker.Attribute{{Name: tidemill.AttrDataset, Value: d.Dataset},
		{Name: tidemill.AttrBranch, Value: d.Branch}, {Name: tidemill.AttrCommit, Value: d.Commit}}
	return f
}

// lost tells the fact that there is no commit from the one that there is.
func lost(d tidemill.RunCommitted) []string {
	if d.Lost == "" {
		return nil
	}
	return []string{"lost"}
}

// view is the fact as an event.
func (a fact) view(names tidemill.Names, at time.Time) (broker.View, error) {
	data, err := json.Marshal(a.data)
	if err != nil {
		return broker.View{}, fmt.Errorf("write %s of run %s: %w", a.typ, a.run, err)
	}
	v := broker.View{ID: a.id, Source: names.Source(a.component), Type: a.typ, Subject: a.key,
		Time: at.UTC().Format(time.RFC3339Nano), DataSchema: tidemill.Schema(a.typ), DataContentType: "application/json", Data: data}
	for _, x := range append([]broker.Attribute{
		{Name: tidemill.AttrRecipe, Value: a.recipe}, {Name: tidemill.AttrRun, Value: a.run},
		{Name: tidemill.AttrCausationID, Value: a.cause.ID}, {Name: tidemill.AttrCausationSource, Value: a.cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: a.chain.Correlation}, {Name: tidemill.AttrTraceParent, Value: a.chain.Trace},
	}, a.attributes...) {
		if x.Value != "" {
			v.Extensions = append(v.Extensions, x)
		}
	}
	return v, nil
}

// put puts a fact on the log and returns where it lies and what the log makes of
// it.
func (f *Foreman) put(ctx context.Context, a fact, at time.Time) (broker.Position, *tidemill.Making, error) {
	v, err := a.view(f.opt.Names, at)
	if err != nil {
		return broker.Position{}, nil, err
	}
	where, m, err := f.ledger.Append(ctx, &v)
	if err != nil {
		return where, nil, fmt.Errorf("put %s of run %s on the log: %w", a.typ, a.run, err)
	}
	return where, m, nil
}
