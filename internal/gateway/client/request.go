package client

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
	"strings"
	"unicode"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

const (
	maxAnswer  = 64 << 20 // enough for a batch with a problem for each event
	maxDrained = 256 << 10
)

// request is a request to the gateway that can be repeated.
type request struct {
	method string
	path   []string
	query  url.Values
	header http.Header
	body   []byte
}

// sendOnce sends a request once. The caller closes the answer's body.
func (g *Gateway) sendOnce(ctx context.Context, r request) (*http.Response, error) {
	u := g.base.JoinPath(r.path...)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", agent)
	if err := g.addToken(req.Header); err != nil {
		return nil, err
	}
	res, err := g.client.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	return res, nil
}

// wholeAnswer is an answer whose body has been read completely.
type wholeAnswer struct {
	status int
	header http.Header
	body   []byte
}

// sendAndRead sends a request once and reads the whole answer.
func (g *Gateway) sendAndRead(ctx context.Context, r request) (wholeAnswer, error) {
	res, err := g.sendOnce(ctx, r)
	if err != nil {
		return wholeAnswer{}, err
	}
	defer res.Body.Close()
	body, err := readAll(res.Body)
	return wholeAnswer{res.StatusCode, res.Header, body}, err
}

func readAll(in io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(in, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	}
	return body, err
}

// drainBody reads the rest of a body, so that its connection can be used again.
func drainBody(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrained)
	_ = body.Close()
}

// toStream returns the path for publishing to the named stream. Without a name, each event goes to
// the stream of its type.
func toStream(stream string) ([]string, error) {
	if stream == "" {
		return []string{"events"}, nil
	}
	if err := tidemill.CheckStream(stream); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrNoStream, err)
	}
	return []string{"streams", stream}, nil
}

// shownBody limits the part of a foreign answer that an error contains.
const shownBody = 160

// refusalError is a problem that the gateway returned. errors.As finds its api.Problem, and
// errors.Is the matching error of a Kafka producer.
type refusalError struct {
	problem *api.Problem
	same    error // matching error of package broker; nil if there is none
}

// newRefusal removes control characters from the problem's texts, because they are printed to a
// terminal, and any program may listen at the address.
func newRefusal(p *api.Problem) *refusalError {
	p.Title, p.Detail, p.Attribute = toPrintable(p.Title), toPrintable(p.Detail), toPrintable(p.Attribute)
	for i, s := range p.Streams {
		p.Streams[i] = toPrintable(s)
	}
	r := &refusalError{problem: p}
	switch strings.TrimPrefix(p.Type, api.ProblemBase) {
	case api.TooLarge:
		r.same = broker.ErrTooLarge
	case api.UnknownStream:
		r.same = broker.ErrNoStream
	case api.InDoubt:
		r.same = broker.ErrInDoubt
	}
	return r
}

func (r *refusalError) Error() string {
	if len(r.problem.Streams) == 0 {
		return r.problem.Error()
	}
	return r.problem.Error() + " (" + strings.Join(r.problem.Streams, ", ") + ")"
}

// Unwrap returns the problem and the matching error of package broker.
func (r *refusalError) Unwrap() []error {
	if r.same == nil {
		return []error{r.problem}
	}
	return []error{r.problem, r.same}
}

// foreignAnswer is an answer that does not come from a gateway.
type foreignAnswer struct {
	status int
	text   string
}

func (s *foreignAnswer) Error() string { return s.text }

// Status returns the HTTP status in an error of this package; 0 if it has none.
func Status(err error) int {
	var p *api.Problem
	var s *foreignAnswer
	switch {
	case errors.As(err, &p):
		return p.Status
	case errors.As(err, &s):
		return s.status
	}
	return 0
}

// failureError turns a failed answer into an error. If the answer has no Problem, it comes from a
// proxy, or from another server at the address.
func (g *Gateway) failureError(a wholeAnswer) error {
	if p, ok := problemOf(a); ok {
		return newRefusal(p)
	}
	if to := a.header.Get("Location"); a.status/100 == 3 && to != "" {
		return &foreignAnswer{a.status, fmt.Sprintf("%s redirects (%s, to %s); give the gateway's own URL", g.base, statusText(a.status), toPrintable(to))}
	}
	return &foreignAnswer{a.status, fmt.Sprintf("%s answered %s, not as a gateway of Tidemill does: is it one? The answer: %s", g.base, statusText(a.status), glimpse(a))}
}

func problemOf(a wholeAnswer) (*api.Problem, bool) {
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	var p api.Problem
	if media != api.ProblemType || json.Unmarshal(a.body, &p) != nil {
		return nil, false
	}
	p.Status = a.status // the status of the answer counts, not the status in the body
	if p.Detail == "" && p.Title == "" {
		p.Title = statusText(a.status)
	}
	return &p, true
}

func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprint(status, " ", http.StatusText(status)))
}

func glimpse(a wholeAnswer) string {
	text := toPrintable(strings.TrimSpace(string(a.body[:min(len(a.body), 4*shownBody)])))
	if text == "" {
		return "(nothing)"
	}
	if letters := []rune(text); len(letters) > shownBody {
		return string(letters[:shownBody]) + "…"
	}
	return text
}

// toPrintable removes control characters from a text.
func toPrintable(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}
