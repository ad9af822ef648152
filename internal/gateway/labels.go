package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/keys"
)

const (
	mostTruth = 256  // bytes of a true label
	mostEvent = 1024 // bytes of an event's id or source
)

// giveLabel publishes the truth of an answer, as the caller says it, to the stream of the scorer's labels. The same label of
// the same caller with the same Idempotency-Key has the same id, and is a repeat.
func (g *Gateway) giveLabel(w http.ResponseWriter, r *request) *api.Problem {
	c, ok := g.opt.Config().Scorer(r.value)
	if !ok {
		return g.unknownScorer(r.value)
	}
	var ask api.LabelAsk
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := checkLabel(&c, &ask); p != nil {
		return p
	}
	d, key, p := g.labelOf(r, &c, &ask)
	if p != nil {
		return p
	}
	now := time.Now()
	id, at, p := g.publishLabel(r, &c, d, key, now)
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, api.LabelDone{Scorer: c.Name, Truth: d.Truth, ID: id, At: positionOf(at), Key: key, Until: now.Add(c.Labels.Wait).UTC()})
	return nil
}

func checkLabel(c *config.Scorer, ask *api.LabelAsk) *api.Problem {
	switch {
	case c.Labels == nil:
		return invalidRequest(fmt.Sprintf("scorer %s has no labels: add `labels` to it in the config, which says where the truth about its answers arrives", c.Name))
	case ask.Truth == "" || len(ask.Truth) > mostTruth || !utf8.ValidString(ask.Truth):
		return badParameter("truth", fmt.Sprintf("give the true label, with up to %d bytes", mostTruth))
	case ask.Event == "" || len(ask.Event) > mostEvent || !utf8.ValidString(ask.Event):
		return badParameter("event", "give the place of the answered event, such as "+c.From+"/3/17, or its id")
	case len(ask.Source) > mostEvent || !utf8.ValidString(ask.Source):
		return badParameter("source", fmt.Sprintf("it has more than %d bytes, or is not text", mostEvent))
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}

// labelOf returns the label of the event that the caller names. The key is known only if the caller names
// the event's place, so a caller with limited keys must do so.
func (g *Gateway) labelOf(r *request, c *config.Scorer, ask *api.LabelAsk) (d tidemill.LabelData, key string, p *api.Problem) {
	d = tidemill.LabelData{Scorer: c.Name, Truth: ask.Truth, Reason: ask.Reason}
	at, isPlace := broker.ParsePlace(ask.Event)
	switch {
	case isPlace && at.Stream == c.From:
		if ask.Source != "" {
			return d, "", badParameter("source", "it belongs to an event's id, and event is a place; leave it out")
		}
		key, p = g.readLabelled(r, c, at, &d)
		return d, key, p
	case c.Labels.ID == "":
		return d, "", badParameter("event", fmt.Sprintf("scorer %s does not match labels by an event's id: give the event's place, such as %s/3/17", c.Name, c.From))
	case !r.caller.AllKeys(access.Operate):
		return d, "", forbidden(fmt.Sprintf("you may operate only on some keys, and an id shows no key: give the event's place, such as %s/3/17", c.From))
	}
	d.ID, d.Source = ask.Event, ask.Source
	return d, "", nil
}

// readLabelled completes a label from the event at a place.
func (g *Gateway) readLabelled(r *request, c *config.Scorer, at broker.Position, d *tidemill.LabelData) (key string, p *api.Problem) {
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	found, err := g.opt.Broker.EventAt(ctx, at, func(e *broker.Incoming) {
		place := keys.NewPlace(c.Key)
		key = string([]byte(place.Of(&e.View)))
		d.Place, d.ID, d.Source = at.Place(), string([]byte(e.ID)), string([]byte(e.Source))
		if c.Labels.Field != "" {
			field := keys.NewPlace(c.Labels.Field)
			d.Field = string([]byte(field.Of(&e.View)))
		}
	})
	all := r.caller.AllKeys(access.Operate)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			g.log.Warn("gateway: reading an event failed; the caller gets a 503", "stream", at.Stream, "reason", err)
		}
		return "", unavailable("the stream " + at.Stream + " cannot be read now; try again later")
	case found && !all && (key == "" || !r.caller.MayTouch(access.Operate, key)):
		return "", forbidden(fmt.Sprintf("the event at %s belongs to a key that you may not operate on", at.Place()))
	case !found && !all: // whether there is such an event is not the caller's business
		return "", forbidden(fmt.Sprintf("there is no event at %s of a key that you may operate on", at.Place()))
	case !found:
		return "", badParameter("event", fmt.Sprintf("there is no event at %s: it has expired, or there is none yet", at.Place()))
	}
	return key, nil
}

func (g *Gateway) publishLabel(r *request, c *config.Scorer, d tidemill.LabelData, key string, now time.Time) (id string, at broker.Position, p *api.Problem) {
	data, err := json.Marshal(d)
	if err != nil {
		return "", at, invalidRequest(err.Error())
	}
	id = tidemill.ID(tidemill.TypeLabel, c.Name, string(data), r.callerName(), wishKey(r))
	v := broker.View{ID: id, Source: g.installNames().Source("gateway"), Type: tidemill.TypeLabel, Subject: key, Time: now.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeLabel), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrScorer, Value: c.Name}, {Name: tidemill.AttrCorrelationID, Value: id}}}
	if by := r.callerName(); by != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrAuthID, Value: by})
	}
	span := g.startSpan(r)
	defer span.End()
	telemetry.Remember(r.trace, &v)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	receipt, err := g.opt.Producer.Publish(ctx, c.Labels.From, &v)
	if errors.Is(err, broker.ErrNoStream) {
		return "", at, unavailable("the stream " + c.Labels.From + " is not made yet; try again later")
	}
	if err != nil {
		return "", at, g.commandProblem(&v, err, time.Since(now))
	}
	g.log.Info("gateway: a person gave a label", "scorer", c.Name, "event", id, "key", key, "by", r.loggedName())
	return id, receipt.Position(), nil
}
