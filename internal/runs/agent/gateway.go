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
	askWithin   = 90 * time.Second // one try; a gateway has answered by then
	maxProblem  = 64 << 10
	maxAnswer   = 256 << 20 // the files of a tree
)

// door is the gateway as an attempt sees it.
type door struct {
	base, token string
	http        *http.Client
	gone        func() // the attempt counts no more
}

func newDoor(o *Options, gone func()) *door {
	c := *o.HTTP
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // else the token goes along
	return &door{base: strings.TrimSuffix(o.Gateway, "/") + "/agent/v1/attempts/" + url.PathEscape(o.Attempt), token: o.Token, http: &c, gone: gone}
}

func (d *door) sign(r *http.Request) { r.Header.Set("Authorization", "Bearer "+d.token) }

// said is a thing to say, or to ask if it has no media type.
type said struct {
	path  string
	media string
	body  []byte
}

// refusal is an answer that is no success.
type refusal struct {
	status int
	after  time.Duration // that it asks to wait
	err    error         // an *api.Problem, if a gateway told of one
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// insist asks until there is an answer that stays, or the context ends.
func (d *door) insist(ctx context.Context, s said, take func(io.Reader) error) error {
	backoff := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}
	for {
		err := d.once(ctx, askWithin, s, take)
		after, again := passing(err)
		if !again {
			return err
		}
		if retry.Sleep(ctx, max(backoff.Next(), min(after, time.Minute))) != nil {
			return err
		}
	}
}

// once asks once.
func (d *door) once(ctx context.Context, within time.Duration, s said, take func(io.Reader) error) error {
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
		return d.heed(refused(res))
	}
	if take == nil {
		return nil
	}
	return take(io.LimitReader(res.Body, maxAnswer))
}

// heed looks in an error for the word that the attempt counts no more. A token
// that is not known any more says the same: its run has been forgotten.
func (d *door) heed(err error) error {
	if p := new(api.Problem); errors.As(err, &p) && (p.Type == api.ProblemBase+api.Superseded || p.Status == http.StatusUnauthorized) {
		d.gone()
	}
	return err
}

const maxDrained = 64 << 10

// drop lets a connection be used again, unless there is much left on it.
func drop(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrained)
	_ = body.Close()
}

// refused is what an answer that is no success says.
func refused(res *http.Response) error {
	r := &refusal{status: res.StatusCode}
	if seconds, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 16); err == nil {
		r.after = time.Duration(seconds) * time.Second
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem)) // what came of it has to do
	var p api.Problem
	if media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); media == api.ProblemType && json.Unmarshal(body, &p) == nil {
		p.Status = res.StatusCode
		r.err = &p
		return r
	}
	r.err = fmt.Errorf("the gateway answered %s: %.160q", res.Status, body)
	return r
}

// passing tells whether a failure may pass, and how long to wait at least.
func passing(err error) (after time.Duration, ok bool) {
	var r *refusal
	switch {
	case err == nil || errors.As(err, new(*fault)):
		return 0, false
	case !errors.As(err, &r):
		return 0, true // of the connection
	case r.status >= 500 && r.status != http.StatusNotImplemented:
		return r.after, true
	}
	return r.after, r.status == http.StatusRequestTimeout || r.status == http.StatusTooManyRequests
}

const jsonType, linesType, bytesType = "application/json", "application/x-ndjson", "application/octet-stream"

// tell says something in JSON.
func (d *door) tell(ctx context.Context, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return &fault{err: err}
	}
	return d.insist(ctx, said{path, jsonType, text}, into(answer))
}

// into reads an answer of JSON. One that cannot be read may have been cut off.
func into(to any) func(io.Reader) error {
	return func(r io.Reader) error { return json.NewDecoder(r).Decode(to) }
}

// beat says every few seconds that the attempt is there, and hears whether it is
// still wanted. One that is alone and takes no longer than that says nothing;
// those that work together have to be heard at once. The result ends it, and
// waits.
func (a *attempt) beat() (stop func()) {
	every := time.Duration(a.order.BeatSeconds * float64(time.Second))
	if every <= 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(a.ends.dead)
	done := make(chan struct{})
	first := every
	if !a.party.alone() {
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
		_ = a.beatOnce(ctx, max(every, time.Second)) // one that failed is made good by the next
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

// beatOnce beats, and heeds what it hears. Who is telling of the end may hear that
// the attempt counts no more because it has just been told of: what is true then,
// the answer to that says.
func (a *attempt) beatOnce(ctx context.Context, within time.Duration) error {
	var b api.Beat
	door := *a.door
	door.gone = func() {
		if !a.telling.Load() {
			a.door.gone()
		}
	}
	if err := door.once(ctx, within, said{"/beat" + a.party.says(), jsonType, nil}, into(&b)); err != nil {
		return err
	}
	if b.Cancel != "" {
		a.ends.end(&cancelled{b.Cancel})
	}
	a.party.hears(&b)
	if b.End && !a.party.first() {
		a.ends.end(errOver)
	}
	return nil
}

// Lingering says how an agent waits for another attempt in the place where it
// has done one.
type Lingering struct {
	Pod   string
	For   time.Duration // 0 is not at all
	Clean func() error  // leaves nothing there of the attempt before
}

// Follow does an attempt, and others after it that the gateway gives to whoever
// waits in the same place. The folder of each is beneath that of the options.
func Follow(ctx context.Context, o Options, l Lingering) error {
	place := o.Work
	for {
		o.Work = filepath.Join(place, o.Attempt)
		told, err := do(ctx, o)
		if err != nil || !mayLinger(told) || l.For <= 0 || ctx.Err() != nil {
			return err
		}
		if err := l.Clean(); err != nil {
			return err
		}
		next, err := ask(ctx, o.withDefaults(), l)
		if err != nil || next.Attempt == "" {
			return err
		}
		o.Attempt, o.Token = next.Attempt, next.Token
	}
}

// mayLinger: who was asked to leave leaves.
func mayLinger(told tidemill.Outcome) bool {
	return told == tidemill.OutcomeSucceeded || told == tidemill.OutcomeFailed
}

const (
	askAgain    = time.Second      // at most, behind a gateway that is away
	answerWaits = 10 * time.Second // more than it was asked to
)

// ask waits for another attempt. A gateway that goes away meanwhile is no reason
// to leave: there is another, and what it was given it is told by that one too.
// Nothing is an error but what cannot be asked.
func ask(ctx context.Context, o Options, l Lingering) (next api.Given, err error) {
	d := newDoor(&o, func() {})
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
		after, again := passing(err)
		if !again {
			return api.Given{}, nil // it has nothing for us, and never will
		}
		if time.Since(from) > askAgain {
			backoff.Reset()
		}
		_ = retry.Sleep(ctx, max(backoff.Next(), min(after, askAgain)))
	}
}

func askOnce(ctx context.Context, d *door, within time.Duration, text []byte) (next api.Given, err error) {
	err = d.once(ctx, within, said{"/next", jsonType, text}, func(r io.Reader) error {
		err := json.NewDecoder(r).Decode(&next)
		if errors.Is(err, io.EOF) {
			return nil // no content: it shall leave
		}
		return err
	})
	return next, err
}
