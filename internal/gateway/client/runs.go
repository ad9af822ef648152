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

	"tidemill.dev"
	"tidemill.dev/api"
)

// RunQuery says which runs are looked for. What is empty excludes none.
type RunQuery struct {
	States      []tidemill.RunState
	Recipe, Key string
	Since       string // a time, or one ago such as -1h
	After       string // a page's Next
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

// Runs are a page of runs, newest first.
func (g *Gateway) Runs(ctx context.Context, q RunQuery) (page api.Runs, err error) {
	return page, g.get(ctx, "list the runs", &page, q.values(), "runs")
}

// Run is all that is known of one run. The beginning of its id will do.
func (g *Gateway) Run(ctx context.Context, id string) (whole api.RunWhole, err error) {
	return whole, g.get(ctx, "show run "+id, &whole, nil, "runs", id)
}

// Asking names a request that starts or retries runs, through all of its parts
// and all of their tries.
type Asking string

// NewAsking is another name.
func NewAsking() Asking { return Asking(rand.Text()) }

// StartRuns starts runs, as many as one request does.
func (g *Gateway) StartRuns(ctx context.Context, named Asking, ask api.RunsAsked) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "start runs of "+ask.Recipe, ask, &done, "runs")
}

// CancelRuns has runs end.
func (g *Gateway) CancelRuns(ctx context.Context, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.post(ctx, "cancel runs", ask, &done, "runs", "cancel")
}

// RetryRuns asks anew for runs that have ended.
func (g *Gateway) RetryRuns(ctx context.Context, named Asking, ask api.RunsSelected) (done api.RunsDone, err error) {
	return done, g.postNamed(ctx, named, "retry runs", ask, &done, "runs", "retry")
}

// postNamed is post for what would be done twice but for its name.
func (g *Gateway) postNamed(ctx context.Context, named Asking, what string, body, to any, path ...string) error {
	r, err := asking(body, path...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.header[http.CanonicalHeaderKey(api.HeaderIdempotencyKey)] = []string{string(named)}
	a, err := g.patience(askWithin).ask(ctx, r)
	return g.read(what, a, err, to)
}

// Recipes are those of the config, as they stand now.
func (g *Gateway) Recipes(ctx context.Context) (all api.Recipes, err error) {
	return all, g.get(ctx, "list the recipes", &all, nil, "recipes")
}

// PauseRecipe has no run of a recipe begin.
func (g *Gateway) PauseRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "pause recipe "+name, nil, &done, "recipes", name, "pause")
}

// ResumeRecipe ends that.
func (g *Gateway) ResumeRecipe(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "resume recipe "+name, nil, &done, "recipes", name, "resume")
}

// Pools are those of the config, as they stand now.
func (g *Gateway) Pools(ctx context.Context) (all api.Pools, err error) {
	return all, g.get(ctx, "list the pools", &all, nil, "pools")
}

// PausePool has no attempt begin in a pool.
func (g *Gateway) PausePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "pause pool "+name, nil, &done, "pools", name, "pause")
}

// ResumePool ends that.
func (g *Gateway) ResumePool(ctx context.Context, name string) (done api.Rested, err error) {
	return done, g.post(ctx, "resume pool "+name, nil, &done, "pools", name, "resume")
}

// LogOptions say what of a run's log is wanted.
type LogOptions struct {
	Attempt    int    // 0 is the newest
	Part       string // one of those that work on it alone; empty is all of them
	Follow     bool   // until the run has ended
	Timestamps bool
}

// RunLog copies what a run's command says, or has said. The beginning of the
// run's id will do. When it is cut off it comes back and goes on behind the last
// byte that came, for as long as a gateway answers.
func (g *Gateway) RunLog(ctx context.Context, run string, o LogOptions, to io.Writer) error {
	l := &logLine{g: g, run: run, o: o, to: to}
	p := l.patience()
	for {
		before := l.got
		err := l.read(ctx)
		if err == nil {
			p.g.trouble.Store(nil)
			return nil
		}
		if l.got > before {
			p = l.patience()
		}
		var away *awayError
		if errors.As(err, &away) && ctx.Err() == nil {
			err = p.pause(ctx, away.after, away.error)
		}
		if err != nil {
			return fmt.Errorf("read the log of run %s: %w", run, err)
		}
	}
}

// logLine is the connection that a log comes by.
type logLine struct {
	g   *Gateway
	run string
	o   LogOptions
	to  io.Writer

	attempt string // whose log it begins with; empty before that is known
	got     int64
	written error // what kept a byte from being written
}

// patience is how long a gateway may be away: as long as it takes to start it
// anew, for who follows.
func (l *logLine) patience() *patience {
	if l.o.Follow {
		return l.g.patience(l.g.timeout)
	}
	return l.g.reading()
}

// read asks for what has not come yet and copies it.
func (l *logLine) read(ctx context.Context) error {
	res, err := l.g.do(ctx, l.request())
	if err != nil {
		if lastingFault(err) {
			return err
		}
		return &awayError{error: err}
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return l.refused(res)
	}
	l.attempt = res.Header.Get(api.HeaderAttempt)
	_, err = io.Copy(l, res.Body)
	switch {
	case l.written != nil:
		return l.written
	case err != nil:
		return &awayError{error: plain(err)}
	}
	return nil
}

// Write passes on what has come.
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
	if l.attempt != "" { // else the newest might be another by now
		q.Set("attempt", l.attempt)
		q.Set("skip", strconv.FormatInt(l.got, 10))
	}
	return request{method: http.MethodGet, path: []string{"api", "v1", "runs", l.run, "log"}, query: q}
}

func (l *logLine) refused(res *http.Response) error {
	body, err := readAll(res.Body)
	if err != nil {
		return &awayError{error: err}
	}
	a := answer{res.StatusCode, res.Header, body}
	err = l.g.fault(a)
	if after, ok := passing(a); ok {
		return &awayError{err, after}
	}
	return err
}
