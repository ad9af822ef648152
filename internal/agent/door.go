package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/internal/api"
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
	for n := 0; ; n++ {
		err := d.once(ctx, askWithin, s, take)
		after, again := passing(err)
		if !again {
			return err
		}
		wait := min(firstWait<<min(n, 10), longestWait)
		if pause(ctx, max(wait/2+rand.N(wait/2), min(after, time.Minute))) != nil {
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

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
