package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"tidemill.dev"
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
