package erase

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/runs/scheduler"
)

// component is what our facts say they come from.
const component = "forget"

// Ask is a wish that a key be forgotten.
type Ask struct {
	Key, By, Reason string
	Cause           tidemill.Cause // an event, or what names a person's request; said again it is one wish
	Component       string         // whom it came to; empty is the function
	Correlation     string
	Trace           string // traceparent
}

// Ask puts the wish on the log, and returns the id under which it goes. What
// counts as the key's end is this fact: what is asked for afterwards begins the
// key anew.
func (f *Forgetter) Ask(ctx context.Context, a Ask) (string, error) {
	if err := scheduler.CheckKey(a.Key); err != nil {
		return "", fmt.Errorf("ask to forget a key: %w", err)
	}
	data, err := json.Marshal(tidemill.KeyForgetting{Reason: a.Reason})
	if err != nil {
		return "", err
	}
	from := a.Component
	if from == "" {
		from = component
	}
	o := Order{ID: tidemill.ID("forgetting", a.Key, a.Cause.Source, a.Cause.ID), Key: a.Key, By: a.By, Correlation: a.Correlation, Trace: a.Trace}
	v := o.fact(f.o.Names, tidemill.TypeKeyForgetting, o.ID, a.Cause, data, f.now())
	v.Source = f.o.Names.Source(from)
	if _, err := f.o.Producer.Publish(ctx, tidemill.StreamFacts, &v); err != nil {
		return "", fmt.Errorf("ask to forget key %s: %w", a.Key, err)
	}
	return o.ID, nil
}

// Order is a fact tidemill.key.forgetting, as the function hears it.
type Order struct {
	ID, Source      string
	Key, By, Reason string
	At              time.Time
	Correlation     string
	Trace           string
}

func (o *Order) cause() tidemill.Cause { return tidemill.Cause{Source: o.Source, ID: o.ID} }

// fact is an event about the key that follows from something.
func (o *Order) fact(names tidemill.Names, typ, id string, cause tidemill.Cause, data []byte, now time.Time) broker.View {
	v := broker.View{ID: id, Source: names.Source(component), Type: typ, Subject: o.Key, Time: now.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(typ), DataContentType: "application/json", Data: data}
	chain := o.Correlation
	if chain == "" {
		chain = id
	}
	for _, x := range []broker.Attribute{
		{Name: tidemill.AttrCausationID, Value: cause.ID}, {Name: tidemill.AttrCausationSource, Value: cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: chain}, {Name: tidemill.AttrTraceParent, Value: o.Trace},
		{Name: tidemill.AttrAuthID, Value: o.By},
	} {
		if x.Value != "" {
			v.Extensions = append(v.Extensions, x)
		}
	}
	return v
}
