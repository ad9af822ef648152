package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// The components that facts of models come from.
const (
	byPromote = "promote" // what follows from a run's end
	byGateway = "gateway" // a person's wish
	byForget  = "forget"  // the end of a key
)

// fact is what is to be said of a model.
type fact struct {
	typ, id, source string
	model, key      string
	version         int // 0 is none
	recipe, run, by string
	chain           chain
	data            any
}

// chain is what a fact inherits from the one before it.
type chain struct {
	cause              tidemill.Cause
	correlation, trace string
}

// after is the chain of what follows from an event.
func after(v *broker.View) chain {
	c := chain{cause: tidemill.Cause{Source: v.Source, ID: v.ID}}
	c.correlation, _ = v.Attribute(tidemill.AttrCorrelationID)
	c.trace, _ = v.Attribute(tidemill.AttrTraceParent)
	if c.correlation == "" {
		c.correlation = v.ID
	}
	return c
}

// view is the fact as an event.
func (f *fact) view(at time.Time) (broker.View, error) {
	data, err := json.Marshal(f.data)
	if err != nil {
		return broker.View{}, hopelessf("write %s of model %s: %w", f.typ, f.model, err)
	}
	v := broker.View{ID: f.id, Source: f.source, Type: f.typ, Subject: f.key, Time: at.UTC().Format(time.RFC3339Nano),
		DataSchema: tidemill.Schema(f.typ), DataContentType: "application/json", Data: data, Key: []byte(tidemill.ModelKey(f.model))}
	version := ""
	if f.version > 0 {
		version = strconv.Itoa(f.version)
	}
	for _, x := range []broker.Attribute{
		{Name: tidemill.AttrModel, Value: f.model}, {Name: tidemill.AttrModelVersion, Value: version},
		{Name: tidemill.AttrRecipe, Value: f.recipe}, {Name: tidemill.AttrRun, Value: f.run},
		{Name: tidemill.AttrAuthID, Value: f.by},
		{Name: tidemill.AttrCausationID, Value: f.chain.cause.ID}, {Name: tidemill.AttrCausationSource, Value: f.chain.cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: f.chain.correlation}, {Name: tidemill.AttrTraceParent, Value: f.chain.trace},
	} {
		if x.Value != "" {
			v.Extensions = append(v.Extensions, x)
		}
	}
	return v, nil
}

// said is a fact of ours that is on the log, and where.
type said struct {
	view broker.View
	at   tidemill.Mark
}

// put puts a fact on the log and returns it with what the log makes of the model.
func (r *Registrar) put(ctx context.Context, f *fact) (said, *tidemill.Model, error) {
	v, err := f.view(r.now())
	if err != nil {
		return said{}, nil, err
	}
	where, m, err := r.o.Ledger.AppendModel(ctx, &v)
	if err != nil {
		return said{}, nil, fmt.Errorf("put %s of model %s on the log: %w", f.typ, f.model, err)
	}
	return said{v, tidemill.Mark{Partition: where.Partition, Offset: where.Offset}}, m, nil
}
