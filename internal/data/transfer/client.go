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

// Client speaks to the routes below a base: Base+"/objects/missing",
// Base+"/objects" and Base+"/object?digest=". A zero field is its default.
type Client struct {
	Base    string
	HTTP    *http.Client
	Sign    func(*http.Request) // adds the credential; not to requests that go elsewhere
	Cache   string              // a folder of files that have been got; empty is none
	Ways    int                 // requests at once; 4
	Replace bool                // Get writes over what is there and differs; else that is an error
	Again   func(error)         // told of a failure that is tried again; by several goroutines at once
	Moved   Count               // of objects that went over the wire, not of those that were there
}

// Count is told what has been done since it was told last: files and bytes. It
// is called by one goroutine at a time.
type Count func(files int, bytes int64)

const defaultWays = 4

func (c *Client) ways() int {
	if c.Ways > 0 {
		return c.Ways
	}
	return defaultWays
}

// staying is the client that follows no redirect by itself: it would take the
// credential along.
func (c *Client) staying() *http.Client {
	h := http.Client{}
	if c.HTTP != nil {
		h = *c.HTTP
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &h
}

// tally has one goroutine at a time tell a Count.
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

// ask is a request that may be made again.
type ask struct {
	method, url string
	media       string // of the body
	length      int64
	body        func() io.Reader // anew for each try; nil is none
	foreign     bool             // it goes past the gateway, and bears no credential
	take        func(io.Reader) error
}

const (
	maxProblem = 1 << 20
	maxHops    = 3
)

// do asks until there is an answer that stays.
func (o *carrying) do(ctx context.Context, a ask) error {
	return o.again(ctx, func() error { return o.once(ctx, a) })
}

// once asks once. A request on which nothing moves is cut: nobody could tell it
// from one that is slow, but that it stands still.
func (o *carrying) once(ctx context.Context, a ask) error {
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	p := &pulse{time.AfterFunc(stallAfter, func() { cut(errStalled) })}
	defer p.t.Stop()
	err := o.exchange(ctx, a, p)
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

func (o *carrying) exchange(ctx context.Context, a ask, p *pulse) error {
	res, err := o.send(ctx, a, p)
	for hops := 0; err == nil && isElsewhere(res) && a.method == http.MethodGet; hops++ {
		a, err = elsewhere(a, res)
		drop(res)
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
	defer drop(res)
	switch {
	case res.StatusCode/100 != 2:
		return refused(res)
	case a.take == nil && !a.foreign && res.StatusCode != http.StatusNoContent:
		return refused(res) // a page for every path answers 200, and has stored nothing
	case a.take == nil:
		return nil
	}
	return a.take(&beating{res.Body, p})
}

func (o *carrying) send(ctx context.Context, a ask, p *pulse) (*http.Response, error) {
	var body io.Reader
	if a.body != nil && a.length > 0 { // of none net/http would make chunks
		body = &beating{a.body(), p}
	}
	req, err := http.NewRequestWithContext(ctx, a.method, a.url, body)
	if err != nil {
		return nil, local(err)
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
	if errors.As(err, &outer) { // its text repeats a URL that may be a key
		err = outer.Err
	}
	return res, err
}

func isElsewhere(res *http.Response) bool {
	return res.StatusCode/100 == 3 && res.Header.Get("Location") != ""
}

func elsewhere(a ask, res *http.Response) (ask, error) {
	to, err := res.Location()
	if err != nil {
		return a, fmt.Errorf("the answer sends us to an address that cannot be read: %w", err)
	}
	a.url, a.foreign = to.String(), true
	return a, nil
}

// refused is what an answer that is no success says.
func refused(res *http.Response) error {
	r := &refusal{status: res.StatusCode, after: retryAfter(res.Header.Get("Retry-After"))}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem)) // what came of it has to do
	var p api.Problem
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media == api.ProblemType && json.Unmarshal(body, &p) == nil {
		p.Status = res.StatusCode
		r.err = &p
		return r
	}
	r.err = fmt.Errorf("%s answered %s: %q", res.Request.URL.Host, res.Status, clip(strings.TrimSpace(string(body))))
	return r
}

// clip keeps a page of somebody else's from filling an error.
func clip(text string) string {
	const shown = 160
	if len(text) > shown {
		return text[:shown] + "…"
	}
	return text
}

const maxDrained = 64 << 10

// drop lets a connection be used again, unless there is much left on it.
func drop(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxDrained)
	_ = res.Body.Close()
}

// pulse is what cuts a request that stands still.
type pulse struct{ t *time.Timer }

// beating tells the pulse of each read.
type beating struct {
	r io.Reader
	p *pulse
}

func (b *beating) Read(to []byte) (int, error) {
	n, err := b.r.Read(to)
	if n > 0 {
		b.p.t.Reset(stallAfter)
	}
	return n, err
}

func (b *beating) Close() error {
	if c, ok := b.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// askJSON asks with a body and for an answer of JSON.
func (o *carrying) askJSON(ctx context.Context, path string, body, to any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return local(err)
	}
	return o.do(ctx, ask{method: http.MethodPost, url: o.Base + path, media: "application/json", length: int64(len(text)),
		body: func() io.Reader { return strings.NewReader(string(text)) },
		take: func(r io.Reader) error { return json.NewDecoder(r).Decode(to) }})
}

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	tryFor      = 2 * time.Minute // since the first failure
	stallAfter  = time.Minute     // a request on which nothing moves is cut
)

var errStalled = fmt.Errorf("nothing moved for %s", stallAfter)

// localFault is an error of this side, which no retry mends.
type localFault struct{ err error }

func (l *localFault) Error() string { return l.err.Error() }
func (l *localFault) Unwrap() error { return l.err }

// local marks an error as one of this side.
func local(err error) error {
	if err == nil {
		return nil
	}
	return &localFault{err}
}

// refusal is an answer that is no success.
type refusal struct {
	status int
	after  time.Duration // that it asks to wait
	err    error         // an *api.Problem, if a gateway told of one
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// passing tells whether a failure may pass, and how long to wait at least.
func passing(ctx context.Context, err error) (after time.Duration, ok bool) {
	if ctx.Err() != nil || errors.As(err, new(*localFault)) {
		return 0, false
	}
	var r *refusal
	if !errors.As(err, &r) {
		return 0, true // of the connection
	}
	switch r.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return r.after, true
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

// again tries until it works, what fails will not pass, or the time is up.
func (c *Client) again(ctx context.Context, try func() error) error {
	var until time.Time
	backoff := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}
	for {
		err := try()
		if err == nil {
			return nil
		}
		after, ok := passing(ctx, err)
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

// crew does things several at once until one fails.
type crew struct {
	ctx   context.Context
	stop  context.CancelCauseFunc
	slots chan struct{}
	all   sync.WaitGroup
}

func newCrew(ctx context.Context, ways int) *crew {
	c := &crew{slots: make(chan struct{}, ways)}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	return c
}

// do starts one thing as soon as a hand is free. It is false if nothing more is
// to be begun.
func (c *crew) do(work func(context.Context) error) bool {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return false
	}
	c.all.Go(func() {
		defer func() { <-c.slots }()
		if err := work(c.ctx); err != nil {
			c.stop(err)
		}
	})
	return c.ctx.Err() == nil
}

// wait waits for all and returns the first error, or the one it is given if that
// came first.
func (c *crew) wait(err error) error {
	if err != nil {
		c.stop(err)
	}
	c.all.Wait()
	defer c.stop(nil)
	return context.Cause(c.ctx)
}

// Passes tells whether a failure of Put or Get may pass, so that beginning again
// makes sense: the gateway is away, or has too much to do.
func Passes(ctx context.Context, err error) bool {
	_, ok := passing(ctx, err)
	return ok
}
