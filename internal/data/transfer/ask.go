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
	"strings"
	"time"

	"tidemill.dev/api"
)

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
