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
	maxAnswer  = 64 << 20 // a batch's answers, with a problem for each of its events
	maxDrained = 256 << 10
)

// request is one thing asked of the gateway; it may be asked again.
type request struct {
	method string
	path   []string
	query  url.Values
	header http.Header
	body   []byte
}

// do asks once. The caller closes the answer's body.
func (g *Gateway) do(ctx context.Context, r request) (*http.Response, error) {
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
	if err := g.sign(req.Header); err != nil {
		return nil, err
	}
	res, err := g.client.Do(req)
	if err != nil {
		return nil, plain(err)
	}
	return res, nil
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask is do with the whole answer read.
func (g *Gateway) ask(ctx context.Context, r request) (answer, error) {
	res, err := g.do(ctx, r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := readAll(res.Body)
	return answer{res.StatusCode, res.Header, body}, err
}

func readAll(in io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(in, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is longer than %d MiB", maxAnswer>>20)
	}
	return body, err
}

// drain lets a connection be used again.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrained)
	_ = body.Close()
}

// toStream is the path that takes events: of the stream that claims their type,
// or of one that is named.
func toStream(stream string) ([]string, error) {
	if stream == "" {
		return []string{"events"}, nil
	}
	if err := tidemill.CheckStream(stream); err != nil {
		return nil, fmt.Errorf("%w: %w", broker.ErrNoStream, err)
	}
	return []string{"streams", stream}, nil
}

// shownBody is how much of an answer that is none of ours an error repeats.
const shownBody = 160

// refusal is a problem that the gateway told. errors.As finds the api.Problem in
// it, errors.Is what a producer of Kafka would have returned.
type refusal struct {
	problem *api.Problem
	same    error // nil if Kafka knows nothing like it
}

// newRefusal takes what would steer a terminal out of the problem's text: it is
// printed, and who wrote it may be anybody who listens there.
func newRefusal(p *api.Problem) *refusal {
	p.Title, p.Detail, p.Attribute = harmless(p.Title), harmless(p.Detail), harmless(p.Attribute)
	for i, s := range p.Streams {
		p.Streams[i] = harmless(s)
	}
	r := &refusal{problem: p}
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

func (r *refusal) Error() string {
	if len(r.problem.Streams) == 0 {
		return r.problem.Error()
	}
	return r.problem.Error() + " (" + strings.Join(r.problem.Streams, ", ") + ")"
}

// Unwrap is the problem, and what it is for whoever knows Kafka alone.
func (r *refusal) Unwrap() []error {
	if r.same == nil {
		return []error{r.problem}
	}
	return []error{r.problem, r.same}
}

// stranger is an answer that no gateway gives.
type stranger struct {
	status int
	text   string
}

func (s *stranger) Error() string { return s.text }

// Status is the HTTP status of the answer that an error tells of; 0 if it tells
// of none.
func Status(err error) int {
	var p *api.Problem
	var s *stranger
	switch {
	case errors.As(err, &p):
		return p.Status
	case errors.As(err, &s):
		return s.status
	}
	return 0
}

// fault is what an answer that is no success says. What is not a problem was
// not written by a gateway: by a proxy before it, or by something else that
// listens there.
func (g *Gateway) fault(a answer) error {
	if p, ok := problemOf(a); ok {
		return newRefusal(p)
	}
	if to := a.header.Get("Location"); a.status/100 == 3 && to != "" {
		return &stranger{a.status, fmt.Sprintf("%s sends us elsewhere (%s, to %s); give the gateway's own URL", g.base, statusText(a.status), harmless(to))}
	}
	return &stranger{a.status, fmt.Sprintf("%s answered %s, which is not how a gateway of Tidemill answers: is one there? It says: %s", g.base, statusText(a.status), glimpse(a))}
}

func problemOf(a answer) (*api.Problem, bool) {
	media, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	var p api.Problem
	if media != api.ProblemType || json.Unmarshal(a.body, &p) != nil {
		return nil, false
	}
	p.Status = a.status // what was answered counts, not what the body says of it
	if p.Detail == "" && p.Title == "" {
		p.Title = statusText(a.status)
	}
	return &p, true
}

func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprint(status, " ", http.StatusText(status)))
}

func glimpse(a answer) string {
	text := harmless(strings.TrimSpace(string(a.body[:min(len(a.body), 4*shownBody)])))
	if text == "" {
		return "(nothing)"
	}
	if letters := []rune(text); len(letters) > shownBody {
		return string(letters[:shownBody]) + "…"
	}
	return text
}

// harmless is a text without what a terminal would obey.
func harmless(text string) string {
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
