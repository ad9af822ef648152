package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"tidemill.dev/api"
)

// Ready returns the state of the gateway and of its parts. A gateway that is not ready answers, too.
func (g *Gateway) Ready(ctx context.Context) (ready api.Readiness, err error) {
	res, err := g.sendOnce(ctx, request{method: http.MethodGet, path: []string{"readyz"}, header: http.Header{}})
	if err != nil {
		return ready, fmt.Errorf("ask whether the gateway is ready: %w", err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&ready); err != nil {
		return ready, fmt.Errorf("ask whether the gateway is ready: it answers %s: %w", res.Status, err)
	}
	return ready, nil
}

// Triggers returns the triggers of the config and their state.
func (g *Gateway) Triggers(ctx context.Context) (all api.Triggers, err error) {
	return all, g.get(ctx, "list the triggers", &all, nil, "triggers")
}

// Freshness returns the time to a fresh model of all recipes.
func (g *Gateway) Freshness(ctx context.Context) (all api.Freshness, err error) {
	return all, g.get(ctx, "show the time to a fresh model", &all, nil, "freshness")
}

// Trigger returns one trigger.
func (g *Gateway) Trigger(ctx context.Context, name string) (t api.Trigger, err error) {
	return t, g.get(ctx, "show trigger "+name, &t, nil, "triggers", name)
}

// PauseTrigger pauses a trigger, so that its events wait.
func (g *Gateway) PauseTrigger(ctx context.Context, name string) (done api.TriggerDone, err error) {
	return done, g.postUntilFinal(ctx, "pause trigger "+name, nil, &done, "triggers", name, "pause")
}

// ResumeTrigger ends a pause.
func (g *Gateway) ResumeTrigger(ctx context.Context, name string) (done api.TriggerDone, err error) {
	return done, g.postUntilFinal(ctx, "resume trigger "+name, nil, &done, "triggers", name, "resume")
}

// ReplayTrigger sends a past range to a trigger again. The request is not retried, because the
// stream grows between two attempts, so the second would mean another range.
func (g *Gateway) ReplayTrigger(ctx context.Context, name string, ask api.ReplayAsk) (done api.ReplayDone, err error) {
	what := "replay trigger " + name
	r, err := asking(ask, "triggers", name, "replay")
	if err != nil {
		return done, fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	a, err := g.sendAndRead(ctx, r)
	return done, g.read(what, a, err, &done)
}

// DeadLetters returns a page of the selected open dead letters, newest first. The selection's ids
// are ignored.
func (g *Gateway) DeadLetters(ctx context.Context, s api.LetterSelection, limit int, cursor string) (page api.DeadLetters, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, value := range map[string]string{"trigger": s.Trigger, "scorer": s.Scorer, "reason": s.Reason, "type": s.Type, "key": s.Key, "stream": s.Stream,
		"since": s.Since, "until": s.Until, "cursor": cursor} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return page, g.get(ctx, "list the dead letters", &page, query, "dead-letters")
}

// DeadLetter returns one dead letter with all details. For an open dead letter, the beginning of
// its id is enough.
func (g *Gateway) DeadLetter(ctx context.Context, id string) (whole api.WholeLetter, err error) {
	return whole, g.get(ctx, "find dead letter "+id, &whole, nil, "dead-letters", id)
}

// ReplayLetters delivers dead letters again.
func (g *Gateway) ReplayLetters(ctx context.Context, ask api.LetterAsk) (done api.LetterDone, err error) {
	return done, g.postUntilFinal(ctx, "replay dead letters", ask, &done, "dead-letters", "replay")
}

// DropLetters resolves dead letters without a delivery.
func (g *Gateway) DropLetters(ctx context.Context, ask api.LetterAsk) (done api.LetterDone, err error) {
	return done, g.postUntilFinal(ctx, "drop dead letters", ask, &done, "dead-letters", "drop")
}

func (g *Gateway) get(ctx context.Context, what string, to any, query url.Values, path ...string) error {
	a, err := g.reading().sendUntilFinal(ctx, request{method: http.MethodGet, path: append([]string{"api", "v1"}, path...), query: query})
	return g.read(what, a, err, to)
}

// postUntilFinal repeats a POST until there is a final answer. A repeated request has no further
// effect.
func (g *Gateway) postUntilFinal(ctx context.Context, what string, body, to any, path ...string) error {
	r, err := asking(body, path...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	a, err := g.patience(askWithin).sendUntilFinal(ctx, r)
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

func (g *Gateway) read(what string, a wholeAnswer, err error, to any) error {
	if err == nil && (a.status != http.StatusOK && a.status != http.StatusAccepted || json.Unmarshal(a.body, to) != nil) {
		err = g.failureError(a)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Schedules returns the schedules of the config and their state.
func (g *Gateway) Schedules(ctx context.Context) (all api.Schedules, err error) {
	err = g.get(ctx, "list the schedules", &all, nil, "schedules")
	return all, err
}

// PauseSchedule stops the ticks of a schedule.
func (g *Gateway) PauseSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.postUntilFinal(ctx, "pause schedule "+name, nil, &done, "schedules", name, "pause")
	return done, err
}

// ResumeSchedule ends a pause.
func (g *Gateway) ResumeSchedule(ctx context.Context, name string) (done api.ScheduleDone, err error) {
	err = g.postUntilFinal(ctx, "resume schedule "+name, nil, &done, "schedules", name, "resume")
	return done, err
}
