package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
)

const (
	firstWait   = 50 * time.Millisecond
	longestWait = 5 * time.Second
	askWithin   = 90 * time.Second // time for one try
	maxProblem  = 64 << 10
	maxAnswer   = 256 << 20 // largest response: the files of a tree
	// unknownFor is how long a gateway may not know an attempt that has just begun. During an upgrade a
	// gateway may follow the log by itself, and be later than the controller that began the attempt.
	unknownFor = 10 * time.Second
)

// client is a client of the gateway for one attempt.
type client struct {
	base, token string
	http        *http.Client
	gone        func()    // called if the attempt is superseded
	newUntil    time.Time // until then a gateway may not know the token yet; zero once one has known it
}

func newClient(o *Options, gone func()) *client {
	c := *o.HTTP
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // else the token is sent to the new address
	return &client{base: strings.TrimSuffix(o.Gateway, "/") + "/agent/v1/attempts/" + url.PathEscape(o.Attempt), token: o.Token, http: &c, gone: gone}
}

func (d *client) sign(r *http.Request) { r.Header.Set("Authorization", "Bearer "+d.token) }

// request is a request to the gateway: a POST, or a GET if media is empty.
type request struct {
	path  string
	media string
	body  []byte
}

// refusal is a response without a 2xx status.
type refusal struct {
	status int
	after  time.Duration // time that the gateway asks us to wait
	err    error         // an *api.Problem, if the response has one
	early  bool          // whether the gateway may not know the attempt yet
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// send sends a request until it succeeds, fails permanently, or the context ends.
func (d *client) send(ctx context.Context, s request, take func(io.Reader) error) error {
	backoff := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}
	for {
		err := d.sendOnce(ctx, askWithin, s, take)
		after, again := isTransient(err)
		if !again {
			return err
		}
		if retry.Sleep(ctx, max(backoff.Next(), min(after, time.Minute))) != nil {
			return err
		}
	}
}

// sendOnce sends a request once.
func (d *client) sendOnce(ctx context.Context, within time.Duration, s request, take func(io.Reader) error) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	method := http.MethodGet
	if s.media != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(limited, method, d.base+s.path, bytes.NewReader(s.body))
	if err != nil {
		return &fault{err: err}
	}
	if s.media != "" {
		req.Header.Set("Content-Type", s.media)
	}
	req.Header.Set("User-Agent", "tidemill")
	d.sign(req)
	res, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer drop(res.Body)
	if res.StatusCode/100 != 2 {
		return d.checkSuperseded(refused(res))
	}
	if take == nil {
		return nil
	}
	return take(io.LimitReader(res.Body, maxAnswer))
}

// checkSuperseded ends the attempt if an error says that it is superseded. An unknown token means
// the same, because its run was deleted.
func (d *client) checkSuperseded(err error) error {
	if r, ok := errors.AsType[*refusal](err); ok && r.status == http.StatusUnauthorized && time.Now().Before(d.newUntil) {
		r.early = true
		return err
	}
	if p := new(api.Problem); errors.As(err, &p) && (p.Type == api.ProblemBase+api.Superseded || p.Status == http.StatusUnauthorized) {
		d.gone()
	}
	return err
}

const maxDrained = 64 << 10

// drop reads the rest of a body, unless it is long, so that the connection can be used again.
func drop(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrained)
	_ = body.Close()
}

// refused returns the error of a response without a 2xx status.
func refused(res *http.Response) error {
	r := &refusal{status: res.StatusCode}
	if seconds, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 16); err == nil {
		r.after = time.Duration(seconds) * time.Second
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem)) // an incomplete body is good enough for an error
	var p api.Problem
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media == api.ProblemType && json.Unmarshal(body, &p) == nil {
		p.Status = res.StatusCode
		r.err = &p
		return r
	}
	r.err = fmt.Errorf("the gateway answered %s: %.160q", res.Status, body)
	return r
}

// isTransient reports whether a retry may succeed, and the shortest wait until the retry.
func isTransient(err error) (after time.Duration, ok bool) {
	var r *refusal
	switch {
	case err == nil || errors.As(err, new(*fault)):
		return 0, false
	case !errors.As(err, &r):
		return 0, true // error of the connection
	case r.early:
		return r.after, true
	case r.status >= 500 && r.status != http.StatusNotImplemented:
		return r.after, true
	}
	return r.after, r.status == http.StatusRequestTimeout || r.status == http.StatusTooManyRequests
}

const jsonType, linesType, bytesType = "application/json", "application/x-ndjson", "application/octet-stream"

// postJSON posts a body as JSON.
func (d *client) postJSON(ctx context.Context, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return &fault{err: err}
	}
	return d.send(ctx, request{path, jsonType, text}, decodeInto(answer))
}

// decodeInto returns a function that decodes a JSON response. A decoding error is transient,
// because the response may have been cut off.
func decodeInto(to any) func(io.Reader) error {
	return func(r io.Reader) error { return json.NewDecoder(r).Decode(to) }
}

// beat sends a beat every few seconds. The response says whether the attempt is still valid. A
// single worker sends its first beat after one interval, so a shorter attempt sends no beat.
// Several workers send their first beats at once. The returned function stops the beats, and waits.
func (a *attempt) beat() (stop func()) {
	every := time.Duration(a.order.BeatSeconds * float64(time.Second))
	if every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(a.ends.dead)
	done := make(chan struct{})
	first := every
	if !a.party.isAlone() {
		first = 0
	}
	t := time.AfterFunc(first, func() {
		defer close(done)
		a.beatOn(ctx, every)
	})
	return func() {
		cancel()
		if !t.Stop() {
			<-done
		}
	}
}

func (a *attempt) beatOn(ctx context.Context, every time.Duration) {
	for {
		_ = a.beatOnce(ctx, max(every, time.Second)) // the next beat replaces one that failed
		t := time.NewTimer(a.party.pace(every))
		select {
		case <-a.party.changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// beatOnce sends a beat and obeys the response. While the agent reports the end, a response may
// say that the attempt is superseded only because that report has just arrived. So the beat
// ignores it then, and the response to the report decides.
func (a *attempt) beatOnce(ctx context.Context, within time.Duration) error {
	var b api.Beat
	client := *a.client
	client.gone = func() {
		if !a.telling.Load() {
			a.client.gone()
		}
	}
	if err := client.sendOnce(ctx, within, request{"/beat" + a.party.beatQuery(), jsonType, nil}, decodeInto(&b)); err != nil {
		return err
	}
	if b.Cancel != "" {
		a.ends.end(&runCancelled{b.Cancel})
	}
	a.party.hears(&b)
	if b.End && !a.party.isFirst() {
		a.ends.end(errOver)
	}
	return nil
}

// Lingering says how an agent waits for another attempt after its own.
type Lingering struct {
	Pod   string
	For   time.Duration // 0 is no wait
	Clean func() error  // removes everything that the last attempt has left
}

// Follow does an attempt, then the attempts that the gateway gives to this pod while it lingers.
// Each attempt works in its own folder beneath Options.Work.
func Follow(ctx context.Context, o Options, l Lingering) error {
	place := o.Work
	for {
		o.Work = filepath.Join(place, o.Attempt)
		told, err := doAttempt(ctx, o)
		if err != nil || !mayLinger(told) || l.For <= 0 || ctx.Err() != nil {
			return err
		}
		if err := l.Clean(); err != nil {
			return err
		}
		next, err := askNext(ctx, o.withDefaults(), l)
		if err != nil || next.Attempt == "" {
			return err
		}
		o.Attempt, o.Token = next.Attempt, next.Token
	}
}

// mayLinger reports whether the agent may wait for another attempt. An agent whose machine stops
// does not wait.
func mayLinger(told tidemill.Outcome) bool {
	return told == tidemill.OutcomeSucceeded || told == tidemill.OutcomeFailed
}

const (
	askAgain    = time.Second      // longest pause while the gateway is away
	answerWaits = 10 * time.Second // extra time for the response
)

// askNext waits for another attempt. If the gateway stops meanwhile, askNext repeats the request.
// Every gateway returns the attempt that the pod was given. The only possible error is that the
// request cannot be encoded.
func askNext(ctx context.Context, o Options, l Lingering) (next api.Given, err error) {
	d := newClient(&o, func() {})
	until := time.Now().Add(l.For)
	backoff := retry.Backoff{First: firstWait, Cap: askAgain}
	for {
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return api.Given{}, nil
		}
		text, err := json.Marshal(api.Idling{Pod: l.Pod, Seconds: left.Seconds()})
		if err != nil {
			return api.Given{}, err
		}
		from := time.Now()
		next, err := askOnce(ctx, d, left+answerWaits, text)
		if err == nil {
			return next, nil
		}
		after, again := isTransient(err)
		if !again {
			return api.Given{}, nil // the gateway refuses for good
		}
		if time.Since(from) > askAgain {
			backoff.Reset()
		}
		_ = retry.Sleep(ctx, max(backoff.Next(), min(after, askAgain)))
	}
}

func askOnce(ctx context.Context, d *client, within time.Duration, text []byte) (next api.Given, err error) {
	err = d.sendOnce(ctx, within, request{"/next", jsonType, text}, func(r io.Reader) error {
		err := json.NewDecoder(r).Decode(&next)
		if errors.Is(err, io.EOF) {
			return nil // no content means that the pod must exit
		}
		return err
	})
	return next, err
}
