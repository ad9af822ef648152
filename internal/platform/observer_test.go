package platform

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
)

const labelsOfTests = `version: 1
streams: {messages: {partitions: 2}, scored: {partitions: 2}, verdicts: {}}
scorers:
  intents:
    from: messages
    to: scored
    model: "intent/{key}"
`

const labelsAdded = labelsOfTests + `    labels: {from: verdicts, match: {field: data.order}, truth: data.verdict, wait: 14d}
`

// The observer begins to join a scorer's answers when the scorer gets labels, and stops when it has none any more.
func TestTheObserverFollowsTheConfig(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, labelsOfTests)
	ctx := w.ctx()
	w.must(w.Observer(ctx))
	if c := check(w.Ready(ctx), "observer"); c.Detail != "0 tasks" {
		t.Errorf("without labels: %+v", c)
	}
	w.must(w.applyConfig(ctx, parse(t, labelsAdded)))
	if c := check(w.Ready(ctx), "observer"); c.Detail != "2 tasks" {
		t.Errorf("with labels: %+v", c)
	}
	p, err := w.Producer(broker.ProducerOptions{})
	w.must(err)
	publish := func(stream string, v broker.View) {
		_, err := p.Publish(ctx, stream, &v)
		w.must(err)
	}
	publish("verdicts", broker.View{ID: "1", Source: "/shop", Type: "verdict", Subject: "bot-1", DataContentType: "application/json", Data: []byte(`{"order":"o-1","verdict":"refund"}`)})
	publish("scored", broker.View{ID: "messages/0/5", Source: w.Names().Source("scorer/intents"), Type: tidemill.TypeScored, Subject: "bot-1", DataContentType: "application/json",
		Data: []byte(`{"label":"other","score":0.9,"scores":{"other":0.9,"refund":0.1}}`), Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "intent/bot-1"},
			{Name: tidemill.AttrModelVersion, Value: "3"}, {Name: tidemill.AttrCausationID, Value: "m-5"}, {Name: tidemill.AttrCausationSource, Value: "/chat"}, {Name: tidemill.AttrLabelField, Value: "o-1"}}})
	r, err := follow.OpenReader(ctx, w.Broker(), follow.ReaderOptions{Stream: tidemill.StreamOutcomes, Start: broker.Earliest()})
	w.must(err)
	defer func() { w.must(r.Close(context.WithoutCancel(ctx))) }()
	var got []follow.Event
	for len(got) == 0 {
		got, err = r.Next(ctx)
		w.must(err)
	}
	var d tidemill.OutcomeData
	w.must(json.Unmarshal(got[0].Data, &d))
	if d.Scorer != "intents" || d.Key != "bot-1" || d.Version != 3 || d.Label != "other" || d.Truth != "refund" || d.Basis != tidemill.OutcomeLabelled || d.Scores["refund"] != 0.1 {
		t.Errorf("%+v", d)
	}
	w.must(w.applyConfig(ctx, parse(t, labelsOfTests)))
	if c := check(w.Ready(ctx), "observer"); c.Detail != "0 tasks" {
		t.Errorf("after the labels were removed: %+v", c)
	}
}

// A task that fails makes the process degraded, not unready, and is named.
func TestTheObserverReportsAFailedTask(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, labelsOfTests)
	o := &observer{p: w.Platform, all: map[string]*runningTask{}}
	r := &runningTask{observerTask: observerTask{name: "outcomes.x"}}
	r.set(errors.New("the disk is full"))
	o.all["outcomes.x"] = r
	if c := o.check(t.Context()); !strings.Contains(c.Detail, "outcomes.x: the disk is full") || c.Status != api.Degraded {
		t.Errorf("%+v", c)
	}
}
