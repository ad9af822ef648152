package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// The components that write facts of runs.
const (
	byTrain      = "train"      // request by an event
	byGateway    = "gateway"    // request by a person, or report by an agent
	byController = "controller" // consequence of earlier facts
)

// fact is a fact of a run before it is written.
type fact struct {
	typ, id, component string
	recipe, key, run   string
	cause              tidemill.Cause
	chain              chain
	attributes         []broker.Attribute
	data               any
}

// chain holds the attributes that a fact inherits from its cause.
type chain struct {
	Correlation string `json:"correlationid"`
	Trace       string `json:"traceparent"`
	ID          string `json:"id"`
}

// chainOf returns the chain for the facts of a run. Their cause is the newest event that asked for
// the run: the run uses the data of this event, and the run's state still contains the event.
func chainOf(r *tidemill.Run) chain {
	c := chain{ID: r.Newest.ID}
	_ = json.Unmarshal(r.Event, &c) // if the event is unreadable, only its id is known
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
	f := of(tidemill.TypeRunStarted, byController, r, d, "started", r.ID, number, strconv.Itoa(d.Causes))
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
	var p tidemill.Plan
	_ = json.Unmarshal(r.Plan, &p) // the fold has written it
	f.attributes = append(f.attributes, broker.Attribute{Name: tidemill.AttrRollout, Value: p.Rollout})
	return f
}

func cancelledFact(r *tidemill.Run, by, reason string) fact {
	f := of(tidemill.TypeRunCancelled, byGateway, r, tidemill.RunCancelledData{Reason: reason}, "cancelled", r.ID)
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAuthID, Value: by}}
	return f
}

func committedFact(r *tidemill.Run, d tidemill.RunCommitted) fact {
	f := of(tidemill.TypeRunCommitted, byController, r, d, append([]string{"committed", r.ID}, lostCommitID(d)...)...)
	f.attributes = []broker.Attribute{{Name: tidemill.AttrDataset, Value: d.Dataset},
		{Name: tidemill.AttrBranch, Value: d.Branch}, {Name: tidemill.AttrCommit, Value: d.Commit}}
	return f
}

// lostCommitID makes the id of a fact without a commit differ from the id of a fact with one.
func lostCommitID(d tidemill.RunCommitted) []string {
	if d.Lost == "" {
		return nil
	}
	return []string{"lost"}
}

// view returns the fact as an event.
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

// appendFact appends a fact to the log. It returns the fact's position and the making after it.
func (f *Foreman) appendFact(ctx context.Context, a fact, at time.Time) (broker.Position, *fold.Making, error) {
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

// Seen appends a fact about an attempt that a controller has observed and the agent cannot report.
// Seen appends nothing if the run's state already says the same, or if the attempt is superseded.
// The fact's id derives from its content. If two controllers append the same fact, the fold applies
// only one of them.
func (f *Foreman) Seen(ctx context.Context, run *tidemill.Run, attempt int, d tidemill.RunSeen) error {
	if n := len(run.Attempts); run.State.Ended() || n == 0 || attempt != n {
		return nil
	}
	d.Attempt = attempt
	if _, news := run.Attempts[attempt-1].Sighted(d); !news {
		return nil
	}
	ctx, cancel := steady(ctx)
	defer cancel()
	said, err := seenFact(run, d)
	if err != nil {
		return err
	}
	_, _, err = f.appendFact(ctx, said, f.now())
	return err
}

// SeenAttempt is Seen for a launcher, which knows attempts only. It does nothing if the run has ended.
func (f *Foreman) SeenAttempt(ctx context.Context, a Attempt, d tidemill.RunSeen) error {
	m, err := f.ledger.Making(ctx, a.Recipe, a.Key)
	if err != nil || m == nil || m.Live == nil || m.Live.ID != a.Run {
		return err
	}
	return f.Seen(ctx, m.Live, a.Number, d)
}

func seenFact(r *tidemill.Run, d tidemill.RunSeen) (fact, error) {
	number := strconv.Itoa(d.Attempt)
	content, err := json.Marshal(d)
	if err != nil {
		return fact{}, fmt.Errorf("record the state of run %s: %w", r.ID, err)
	}
	f := of(tidemill.TypeRunSeen, byController, r, d, "seen", r.ID, number, string(content))
	f.attributes = []broker.Attribute{{Name: tidemill.AttrAttempt, Value: number}}
	return f, nil
}

// The results of a run at the end of an attempt, as the outcome attribute of the fact has them.
// Triggers filter on it.
const (
	nowRetrying  = "retrying"
	nowSucceeded = "succeeded"
	nowFailed    = "failed"
	nowCancelled = "cancelled"
)

// outcomeOf folds an attempt's end into a copy of the run and returns the result, so that the
// attribute and the state follow the same rules. If the log contains newer facts, the attribute may
// be wrong; the state is right.
func outcomeOf(r *tidemill.Run, d tidemill.RunFinished, at time.Time) string {
	run := *r
	run.Attempts = slices.Clone(r.Attempts)
	m := fold.Making{Recipe: r.Recipe, Key: r.Key, Live: &run}
	data, _ := json.Marshal(d) // if this fails, view returns the error
	m.Apply(fold.Fact{Type: tidemill.TypeRunFinished, Recipe: r.Recipe, Key: r.Key, Run: r.ID, At: at, Data: data})
	switch run.State {
	case tidemill.RunCommitting, tidemill.RunSucceeded:
		return nowSucceeded
	case tidemill.RunFailed:
		return nowFailed
	case tidemill.RunCancelled:
		return nowCancelled
	}
	return nowRetrying
}

// candidate returns the version that an attempt's end produces, with all data of the run that the
// judge needs; nil if there is no version. The command's environment is left out, because other
// systems read the facts of models.
func candidate(r *tidemill.Run, d tidemill.RunFinished, at time.Time) *tidemill.Candidate {
	var p tidemill.Plan
	_ = json.Unmarshal(r.Plan, &p) // the fold has written it
	d.Candidate = nil
	if p.Model == "" || len(r.Attempts) == 0 || outcomeOf(r, d, at) != nowSucceeded {
		return nil
	}
	first, last := r.Attempts[0], r.Attempts[len(r.Attempts)-1]
	c := &tidemill.Candidate{Model: p.Model, Champion: p.Champion, Origin: tidemill.Origin{
		Run: r.ID, Recipe: r.Recipe, Key: r.Key, Config: r.Config, Attempt: d.Attempt, Began: first.Started, Ended: at,
		Inputs: withoutCredentials(p.Inputs), Causes: r.Causes, First: r.First, Newest: r.Newest, By: r.By,
		Mark: markOf(r), Rollout: p.Rollout, Where: last.Where.With(d.Where)}}
	if p.Judge != nil { // absent in runs that began before Tidemill had gates
		c.Judge = *p.Judge
	} else {
		c.Judge = tidemill.Judge{On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto}
	}
	return c
}

// markOf returns the mark of the start of a run.
func markOf(r *tidemill.Run) tidemill.Mark {
	m := tidemill.Mark{Partition: r.Partition, Offset: r.Attempts[0].Offset}
	if r.Number > 0 {
		m.Making, m.Number = tidemill.RunKey(r.Recipe, r.Key), r.Number
	}
	return m
}

// withoutCredentials returns a plan's inputs without credentials, which may be in an address
// after the ? or before the host.
func withoutCredentials(inputs []tidemill.Input) []tidemill.Input {
	all := slices.Clone(inputs)
	for i := range all {
		all[i].Allow = nil
		all[i].URI, _, _ = strings.Cut(all[i].URI, "?")
		if u, err := url.Parse(all[i].URI); err == nil && u.User != nil {
			u.User = nil
			all[i].URI = u.String()
		}
	}
	return all
}
