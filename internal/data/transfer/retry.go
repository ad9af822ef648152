package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/broker/retry"
)

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
