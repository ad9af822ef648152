package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"tidemill.dev/api"
)

// Triggers are those of the config, as they stand now.
func (g *Gateway) Triggers(ctx context.Context) (all api.Triggers, err error) {
	return all, g.get(ctx, "list the triggers", &all, nil, "triggers")
}

// Trigger is one of them.
func (g *Gateway) Trigger(ctx context.Context, name string) (t api.Trigger, err error) {
	return t, g.get(ctx, "show trigger "+name, &t, nil, "triggers", name)
}

// PauseTrigger lets a trigger's events wait.
func (g *Gateway) PauseTrigger(ctx context.Context, name string) (done api.TriggerDone, err error) {
	return done, g.post(ctx, "pause trigger "+name, nil, &done, "triggers", name, "pause")
}

// ResumeTrigger ends it.
func (g *Gateway) ResumeTrigger(ctx context.Context, name string) (done api.TriggerDone, err error) {
	return done, g.post(ctx, "resume trigger "+name, nil, &done, "triggers", name, "resume")
}

// ReplayTrigger sends a past range to a trigger again. It asks once: between two
// tries the stream would have gone on, and the second would ask for another
// range.
func (g *Gateway) ReplayTrigger(ctx context.Context, name string, ask api.ReplayAsk) (done api.ReplayDone, err error) {
	what := "replay trigger " + name
	r, err := asking(ask, "triggers", name, "replay")
	if err != nil {
		return done, fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	a, err := g.ask(ctx, r)
	return done, g.read(what, a, err, &done)
}

// DeadLetters are the open dead letters that are meant, newest first, a page at
// a time. The selection's ids count for nothing.
func (g *Gateway) DeadLetters(ctx context.Context, s api.LetterSelection, limit int, cursor string) (page api.DeadLetters, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, value := range map[string]string{"trigger": s.Trigger, "reason": s.Reason, "type": s.Type, "key": s.Key, "stream": s.Stream,
		"since": s.Since, "until": s.Until, "cursor": cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return page, g.get(ctx, "list the dead letters", &page, query, "dead-letters")
}

// DeadLetter is all that is known of one dead letter. The beginning of an id
// will do for one that is open.
func (g *Gateway) DeadLetter(ctx context.Context, id string) (whole api.WholeLetter, err error) {
	return whole, g.get(ctx, "show dead letter "+id, &whole, nil, "dead-letters", id)
}

// ReplayLetters has dead letters delivered after all.
func (g *Gateway) ReplayLetters(ctx context.Context, ask api.LetterAsk) (done api.LetterDone, err error) {
	return done, g.post(ctx, "replay dead letters", ask, &done, "dead-letters", "replay")
}

// DropLetters resolves dead letters without a delivery.
func (g *Gateway) DropLetters(ctx context.Context, ask api.LetterAsk) (done api.LetterDone, err error) {
	return done, g.post(ctx, "drop dead letters", ask, &done, "dead-letters", "drop")
}

func (g *Gateway) get(ctx context.Context, what string, to any, query url.Values, path ...string) error {
	a, err := g.reading().ask(ctx, request{method: http.MethodGet, path: append([]string{"api", "v1"}, path...), query: query})
	return g.read(what, a, err, to)
}

// post asks until there is an answer that stays: what is asked for twice here is
// done once.
func (g *Gateway) post(ctx context.Context, what string, body, to any, path ...string) error {
	r, err := asking(body, path...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	a, err := g.patience(askWithin).ask(ctx, r)
	return g.read(what, a, err, to)
}

func asking(body any, path ...string) (request, error) {
	r := request{method: http.MethodPost, path: append([]string{"api", "v1"}, path...)}
	if body == nil {
		return r, nil
	}
	r.header = http.Header{"Content-Type": {"application/json"}}
	var err error
	r.body, err = json.Marshal(body)
	return r, err
}

func (g *Gateway) read(what string, a answer, err error, to any) error {
	if err == nil && (a.status != http.StatusOK && a.status != http.StatusAccepted || json.Unmarshal(a.body, to) != nil) {
		err = g.fault(a)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Schedules are those of the config, as they stand now.
func (g *Gateway) Schedules(ctx context.Context) (all api.Schedules, err error) {
	err = g.get(ctx, "list the schedules", &all, nil, "schedules")
	return all, err
}

// PauseSchedule has a schedule not tick.
func (g *Gateway) PauseSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.post(ctx, "pause schedule "+name, nil, &done, "schedules", name, "pause")
	return done, err
}

// ResumeSchedule ends that.
func (g *Gateway) ResumeSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.post(ctx, "resume schedule "+name, nil, &done, "schedules", name, "resume")
	return done, err
}
