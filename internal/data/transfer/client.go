package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
)

// Client sends requests to the routes below Base: "/objects/missing", "/objects" and
// "/object?digest=". A zero field has its default value.
type Client struct {
	Base    string
	HTTP    *http.Client
	Sign    func(*http.Request) // adds the credential to requests for the gateway
	Cache   string              // folder that caches downloaded files; empty for no cache
	Ways    int                 // number of parallel requests; 0 means 4
	Replace bool                // whether Get overwrites a file that differs; otherwise it is an error
	Again   func(error)         // called with a failure before a retry, by several goroutines in parallel
	Moved   Count               // called with objects that were transferred, without those that existed already
}

// Count is called with the number of files and bytes since its last call, by one goroutine at a
// time.
type Count func(files int, bytes int64)

const defaultWays = 4

func (c *Client) ways() int {
	if c.Ways > 0 {
		return c.Ways
	}
	return defaultWays
}

// noRedirects returns a client that follows no redirect, because it would send the credential along.
func (c *Client) noRedirects() *http.Client {
	h := http.Client{}
	if c.HTTP != nil {
		h = *c.HTTP
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

// tally calls a Count from one goroutine at a time.
type tally struct {
	mu    sync.Mutex
	count Count
}

func (t *tally) add(files int, bytes int64) {
	if t.count == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(files, bytes)
}

// request is a request that can be repeated.
type request struct {
	method, url string
	media       string // media type of the body
	length      int64
	body        func() io.Reader // returns a new reader for each try; nil for no body
	foreign     bool             // whether it does not go to the gateway, and carries no credential
	take        func(io.Reader) error
}

const (
	maxProblem = 1 << 20
	maxHops    = 3
)

// sendWithRetry sends a request, and repeats the request while its failure may be temporary.
func (o *transfer) sendWithRetry(ctx context.Context, a request) error {
	return o.retry(ctx, func() error { return o.sendOnce(ctx, a) })
}

// sendOnce sends a request once. It cancels a request in which no byte has moved for a while. A
// slow request moves some bytes.
func (o *transfer) sendOnce(ctx context.Context, a request) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	p := &stallTimer{time.AfterFunc(stallAfter, func() { cut(errStalled) })}
	defer p.t.Stop()
	err := o.exchange(ctx, a, p)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

func (o *transfer) exchange(ctx context.Context, a request, p *stallTimer) error {
	res, err := o.send(ctx, a, p)
	for hops := 0; err == nil && isElsewhere(res) && a.method == http.MethodGet; hops++ {
		a, err = elsewhere(a, res)
		drainBody(res)
		if hops == maxHops {
			err = errors.New("the answer sends us from place to place")
		}
		if err == nil {
			res, err = o.send(ctx, a, p)
		}
	}
	if err != nil {
		return err
	}
	defer drainBody(res)
	switch {
	case res.StatusCode/100 != 2:
		return answerError(res)
	case a.take == nil && !a.foreign && res.StatusCode != http.StatusNoContent:
		return answerError(res) // a server that answers 200 to every path has stored nothing
	case a.take == nil:
		return nil
	}
	return a.take(&stallReader{res.Body, p})
}

func (o *transfer) send(ctx context.Context, a request, p *stallTimer) (*http.Response, error) {
	var body io.Reader
	if a.body != nil && a.length > 0 { // net/http would send an empty body in chunks
		body = &stallReader{a.body(), p}
	}
	req, err := http.NewRequestWithContext(ctx, a.method, a.url, body)
	if err != nil {
		return nil, asLocalFault(err)
	}
	req.ContentLength = a.length
	if a.media != "" {
		req.Header.Set("Content-Type", a.media)
	}
	req.Header.Set("User-Agent", "tidemill")
	if !a.foreign && o.Sign != nil {
		o.Sign(req)
	}
	res, err := o.http.Do(req)
	var outer *url.Error
	if errors.As(err, &outer) { // its text repeats a URL that may contain a secret
		err = outer.Err
	}
	return res, err
}

func isElsewhere(res *http.Response) bool {
	return res.StatusCode/100 == 3 && res.Header.Get("Location") != ""
}

func elsewhere(a request, res *http.Response) (request, error) {
	to, err := res.Location()
	if err != nil {
		return a, fmt.Errorf("the answer sends us to an address that cannot be read: %w", err)
	}
	a.url, a.foreign = to.String(), true
	return a, nil
}

// answerError returns the error of an unsuccessful answer.
func answerError(res *http.Response) error {
	r := &refusal{status: res.StatusCode, after: retryAfter(res.Header.Get("Retry-After"))}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem)) // part of a body is better than none
	var p api.Problem
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media == api.ProblemType && json.Unmarshal(body, &p) == nil {
		p.Status = res.StatusCode
		r.err = &p
		return r
	}
	r.err = fmt.Errorf("%s answered %s: %q", res.Request.URL.Host, res.Status, clipPage(strings.TrimSpace(string(body))))
	return r
}

// clipPage shortens a foreign page in an error.
func clipPage(text string) string {
	const shown = 160
	if len(text) > shown {
		return text[:shown] + "…"
	}
	return text
}

const maxDrained = 64 << 10

// drainBody lets a connection be reused, unless much of the answer is unread.
func drainBody(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxDrained)
	_ = res.Body.Close()
}

// stallTimer is the timer that cancels a stalled request.
type stallTimer struct{ t *time.Timer }

// stallReader resets the stallTimer at each read.
type stallReader struct {
	r io.Reader
	p *stallTimer
}

func (b *stallReader) Read(to []byte) (int, error) {
	n, err := b.r.Read(to)
	if n > 0 {
		b.p.t.Reset(stallAfter)
	}
	return n, err
}

func (b *stallReader) Close() error {
	if c, ok := b.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// askJSON sends a body and decodes an answer, both in JSON.
func (o *transfer) askJSON(ctx context.Context, path string, body, to any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return asLocalFault(err)
	}
	return o.sendWithRetry(ctx, request{method: http.MethodPost, url: o.Base + path, media: "application/json", length: int64(len(text)),
		body: func() io.Reader { return strings.NewReader(string(text)) },
		take: func(r io.Reader) error { return json.NewDecoder(r).Decode(to) }})
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	tryFor      = 2 * time.Minute // limit since the first failure
	stallAfter  = time.Minute     // time without progress after which a request is cancelled
)

var errStalled = fmt.Errorf("nothing moved for %s", stallAfter)

// localFault is an error of the client's machine, which a retry cannot repair.
type localFault struct{ err error }

func (l *localFault) Error() string { return l.err.Error() }
func (l *localFault) Unwrap() error { return l.err }

// asLocalFault marks an error as an error of the client's machine.
func asLocalFault(err error) error {
	if err == nil {
		return nil
	}
	return &localFault{err}
}

// refusal is an unsuccessful answer.
type refusal struct {
	status int
	after  time.Duration // wait that the answer asks for
	err    error         // an *api.Problem, if a gateway has sent one
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// mayPass reports whether a failure may be temporary, and the least time to wait before a retry.
func mayPass(ctx context.Context, err error) (after time.Duration, ok bool) {
	if ctx.Err() != nil || errors.As(err, new(*localFault)) {
		return 0, false
	}
	var r *refusal
	if !errors.As(err, &r) {
		return 0, true // error of the connection
	}
	switch r.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return r.after, true
	case http.StatusInternalServerError: // S3 has such faults that pass; a gateway's own fault is a problem
		return r.after, !errors.As(r.err, new(*api.Problem))
	}
	return 0, false
}

func retryAfter(text string) time.Duration {
	seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// retry calls try until try succeeds, returns a permanent error, or the time limit is reached.
func (c *Client) retry(ctx context.Context, try func() error) error {
	var until time.Time
	backoff := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}
	for {
		err := try()
		if err == nil {
			return nil
		}
		after, ok := mayPass(ctx, err)
		if !ok {
			return err
		}
		if until.IsZero() {
			until = time.Now().Add(tryFor)
		}
		wait := max(backoff.Next(), after)
		if time.Now().Add(wait).After(until) {
			return fmt.Errorf("%w (tried for %s)", err, tryFor)
		}
		if c.Again != nil {
			c.Again(err)
		}
		if retry.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

// workerPool runs work in parallel until one part fails.
type workerPool struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	slots chan struct{}
	all   sync.WaitGroup
}

func newCrew(ctx context.Context, ways int) *workerPool {
	c := &workerPool{slots: make(chan struct{}, ways)}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	return c
}

// start starts work as soon as a slot is free, unless some work has failed.
func (c *workerPool) start(work func(context.Context) error) {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return
	}
	c.all.Go(func() {
		defer func() { <-c.slots }()
		if err := work(c.ctx); err != nil {
			c.stop(err)
		}
	})
}

// wait waits for all work. It returns the first error, which may be the given one.
func (c *workerPool) wait(err error) error {
	if err != nil {
		c.stop(err)
	}
	c.all.Wait()
	defer c.stop(nil)
	return context.Cause(c.ctx)
}

// Passes reports whether a failure of Put or Get may be temporary, for example because the gateway
// is down or overloaded. A full disk passes too, but Put does not wait until a person has made room.
func Passes(ctx context.Context, err error) bool {
	_, ok := mayPass(ctx, err)
	var r *refusal
	return ok || ctx.Err() == nil && errors.As(err, &r) && r.status == http.StatusInsufficientStorage
}
