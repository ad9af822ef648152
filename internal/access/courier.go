package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	// askWithin bounds one question to the issuer, redirects included.
	askWithin = 5 * time.Second
	maxAnswer = 1 << 20
)

var (
	errPlain = errors.New("it redirects from https to http; keys that come so could be anyone's")
	errBig   = fmt.Errorf("its answer is longer than %d KiB", maxAnswer>>10)
	errText  = errors.New("its answer is no JSON")
)

// courier brings the issuer's documents. The library that reads them asks
// without a deadline and takes answers of any length, so both are bounded here.
// An answer that is no JSON document is an error: whatever it is, the issuer
// cannot be asked.
type courier struct {
	client *http.Client
	done   <-chan struct{} // closed when the guard is
}

func newCourier(client *http.Client, done <-chan struct{}) *courier {
	own := *client
	own.CheckRedirect = func(to *http.Request, via []*http.Request) error {
		switch {
		case via[0].URL.Scheme == "https" && to.URL.Scheme != "https":
			return errPlain
		case len(via) > 3:
			return errors.New("it redirects more than three times")
		}
		return nil
	}
	return &courier{client: &own, done: done}
}

// RoundTrip asks a question, following redirects. Its errors are
// [ErrIssuerAway].
func (c *courier) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := c.bring(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuerAway, err)
	}
	return answer(r, body), nil
}

func (c *courier) bring(r *http.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(r.Context(), askWithin)
	defer cancel()
	go func() {
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	resp, err := c.client.Do(r.Clone(ctx))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", r.URL, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", r.URL, resp.Status)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("read %s: %w", r.URL, errBig)
	case !json.Valid(body):
		return nil, fmt.Errorf("read %s: %w", r.URL, errText)
	}
	return body, nil
}

func answer(r *http.Request, body []byte) *http.Response {
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/json"}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}
}
