package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// RunQuery selects runs. An empty field excludes nothing.
type RunQuery struct {
	States      []tidemill.RunState
	Recipe, Key string
	Since       string // time, or duration before now such as -1h
	After       string // Next of the previous page
	Limit       int
}

func (q *RunQuery) values() url.Values {
	var states []string
	for _, s := range q.States {
		states = append(states, string(s))
	}
	values := url.Values{}
	for name, value := range map[string]string{"state": strings.Join(states, ","), "recipe": q.Recipe, "key": q.Key, "since": q.Since, "after": q.After} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.Limit > 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	return values
}

// Runs returns a page of runs, newest first.
func (g *Gateway) Runs(ctx context.Context, q RunQuery) (page api.Runs, err error) {
	return page, g.get(ctx, "list the runs", &page, q.values(), "runs")
}

// Run returns one run with all details. The beginning of its id is enough.
func (g *Gateway) Run(ctx context.Context, id string) (whole api.RunWhole, err error) {
	return whole, g.get(ctx, "show run "+id, &whole, nil, "runs", id)
}

// Asking is the idempotency key of a request, for all of its parts and their retries.
type Asking string

// NewAsking returns a new idempotency key.
func NewAsking() Asking { return Asking(rand.Text()) }

// StartRuns requests runs, up to the limit of one request.
func (g *Gateway) StartRuns(ctx context.Context, named Asking, ask api.RunsAsked) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "start runs of "+ask.Recipe, ask, &done, "runs")
}

// CancelRuns cancels runs.
func (g *Gateway) CancelRuns(ctx context.Context, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.postUntilFinal(ctx, "cancel runs", ask, &done, "runs", "cancel")
}

// RetryRuns requests ended runs again.
func (g *Gateway) RetryRuns(ctx context.Context, named Asking, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "retry runs", ask, &done, "runs", "retry")
}

// postNamed is postUntilFinal with an idempotency key, for requests that must not run twice.
func (g *Gateway) postNamed(ctx context.Context, named Asking, what string, body, to any, path ...string) error {
	r, err := asking(body, path...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.header[http.CanonicalHeaderKey(api.HeaderIdempotencyKey)] = []string{string(named)}
	a, err := g.patience(askWithin).sendUntilFinal(ctx, r)
	return g.read(what, a, err, to)
}

// Recipes returns the recipes of the config and their state.
func (g *Gateway) Recipes(ctx context.Context) (all api.Recipes, err error) {
	return all, g.get(ctx, "list the recipes", &all, nil, "recipes")
}

// PauseRecipe stops new runs of a recipe.
func (g *Gateway) PauseRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "pause recipe "+name, nil, &done, "recipes", name, "pause")
}

// ResumeRecipe ends a pause.
func (g *Gateway) ResumeRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "resume recipe "+name, nil, &done, "recipes", name, "resume")
}

// Pools returns the pools of the config and their state.
func (g *Gateway) Pools(ctx context.Context) (all api.Pools, err error) {
	return all, g.get(ctx, "list the pools", &all, nil, "pools")
}

// PausePool pauses a pool, so that no new attempt begins in it.
func (g *Gateway) PausePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "pause pool "+name, nil, &done, "pools", name, "pause")
}

// ResumePool ends a pause.
func (g *Gateway) ResumePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.postUntilFinal(ctx, "resume pool "+name, nil, &done, "pools", name, "resume")
}

// LogOptions select a part of a run's log.
type LogOptions struct {
	Attempt    int    // number of the attempt; 0 for the newest
	Part       string // name of one worker or server; if empty, all workers and servers
	Follow     bool   // whether to follow the log until the run has ended
	Timestamps bool
}

// RunLog copies the log of a run. The beginning of the run's id is enough. If the connection
// breaks, it reconnects and continues after the last received byte.
func (g *Gateway) RunLog(ctx context.Context, run string, o LogOptions, to io.Writer) error {
	l := &logLine{g: g, run: run, o: o, to: to}
	p := l.newRetrier()
	for {
		before := l.got
		err := l.copyMissing(ctx)
		if err == nil {
			p.g.trouble.Store(nil)
			return nil
		}
		if l.got > before {
			p = l.newRetrier()
		}
		var away *temporaryError
		if errors.As(err, &away) && ctx.Err() == nil {
			err = p.waitBeforeRetry(ctx, away.after, away.error)
		}
		if err != nil {
			return fmt.Errorf("read the log of run %s: %w", run, err)
		}
	}
}

// logLine is the connection that reads a log.
type logLine struct {
	g   *Gateway
	run string
	o   LogOptions
	to  io.Writer

	attempt string // attempt with which the log begins; empty until it is known
	got     int64
	written error // error of the last write
}

// newRetrier returns a retrier. A follower retries for longer, so that the gateway can restart in
// that time.
func (l *logLine) newRetrier() *retrier {
	if l.o.Follow {
		return l.g.patience(l.g.timeout)
	}
	return l.g.reading()
}

// copyMissing requests the missing part of the log and copies that part. The time until the answer begins is limited; a
// follower may then wait long for the next line.
func (l *logLine) copyMissing(ctx context.Context) error {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(askWithin, cancel)
	res, err := l.g.sendOnce(limited, l.request())
	if err != nil {
		switch {
		case isPermanent(err):
			return err
		case limited.Err() != nil && ctx.Err() == nil:
			err = errSilent
		}
		return &temporaryError{error: err}
	}
	quiet.Stop()
	defer res.Body.Close()
	attempt := res.Header.Get(api.HeaderAttempt)
	if res.StatusCode != http.StatusOK || attempt == "" { // a gateway always names the attempt, and a proxy's page does not
		return l.refused(res)
	}
	l.attempt = attempt
	_, err = io.Copy(l, res.Body)
	switch {
	case l.written != nil:
		return l.written
	case err != nil:
		return &temporaryError{error: withoutURL(err)}
	}
	return nil
}

// Write passes received bytes on.
func (l *logLine) Write(b []byte) (int, error) {
	n, err := l.to.Write(b)
	l.got += int64(n)
	l.written = err
	return n, err
}

func (l *logLine) request() request {
	q := url.Values{"follow": {strconv.FormatBool(l.o.Follow)}, "timestamps": {strconv.FormatBool(l.o.Timestamps)}}
	if l.o.Attempt > 0 {
		q.Set("attempt", strconv.Itoa(l.o.Attempt))
	}
	if l.o.Part != "" {
		q.Set("part", l.o.Part)
	}
	if l.attempt != "" { // because the newest attempt may have changed
		q.Set("attempt", l.attempt)
		q.Set("skip", strconv.FormatInt(l.got, 10))
	}
	return request{method: http.MethodGet, path: []string{"api", "v1", "runs", l.run, "log"}, query: q}
}

func (l *logLine) refused(res *http.Response) error {
	body, err := readAll(res.Body)
	if err != nil {
		return &temporaryError{error: err}
	}
	a := wholeAnswer{res.StatusCode, res.Header, body}
	err = l.g.failureError(a)
	if after, ok := isTemporary(a); ok {
		return &temporaryError{err, after}
	}
	return err
}
