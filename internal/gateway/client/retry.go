package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
)

const (
	firstWait   = 100 * time.Millisecond
	longestWait = 5 * time.Second
	readWithin  = 10 * time.Second // short, because a person waits and may repeat the command
	askWithin   = 45 * time.Second // timeout of one attempt; longer than a gateway takes to answer that the result is in doubt
)

// backoff computes the pause before the next attempt. Jitter spreads the clients of a restarted
// gateway.
type backoff struct{ failures int }

func (b *backoff) next(asked time.Duration) time.Duration {
	b.failures++
	d := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}.After(b.failures)
	return max(d, asked+d/4)
}

// isTemporary reports whether an answer is temporary: the gateway restarts, its Kafka is down, we
// send too many requests, or a proxy has no gateway. after is the requested pause, if any.
func isTemporary(a wholeAnswer) (after time.Duration, ok bool) {
	if !passingStatus(a.status) {
		return 0, false
	}
	return retryAfter(a.header.Get("Retry-After")), true
}

func passingStatus(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter reads a Retry-After header in both of its forms.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// isPermanent reports whether an error of the connection is permanent.
func isPermanent(err error) bool {
	var (
		unknown   x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		plainText tls.RecordHeaderError
	)
	return errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &invalid) ||
		errors.As(err, &verify) || errors.As(err, &plainText) || errors.Is(err, errToken)
}

// neverSent reports whether an error came before anything was sent.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// errSilent is the error of an attempt without an answer.
var errSilent = errors.New("the gateway does not answer")

// retrier retries a request until it has a final answer.
type retrier struct {
	g      *Gateway
	reads  bool // true for requests that store nothing
	within time.Duration
	each   time.Duration // timeout of one attempt; by default askWithin
	wait   backoff
	until  time.Time
	said   error // last failure other than errSilent, which has fewer details
	doubt  bool  // whether an attempt may have stored its events
}

func (g *Gateway) publishing() *retrier { return g.patience(g.timeout) }

func (g *Gateway) reading() *retrier {
	p := g.patience(readWithin)
	p.reads = true
	return p
}

func (g *Gateway) patience(within time.Duration) *retrier {
	return &retrier{g: g, within: within, each: askWithin, until: time.Now().Add(within)}
}

// sendUntilFinal returns the final answer, or the last error when the time is up.
func (p *retrier) sendUntilFinal(ctx context.Context, r request) (wholeAnswer, error) {
	for {
		a, err := p.attemptOnce(ctx, r)
		after, again := isTemporary(a)
		switch {
		case err == nil && (!again || hasEvents(a) || p.reads && p.g.waitsForPerson(a)): // sendBatch decides which events to repeat
			p.g.trouble.Store(nil)
			return a, nil
		case err != nil && (isPermanent(err) || ctx.Err() != nil):
			return a, p.withDoubt(err)
		case err == nil:
			err = p.g.failureError(a)
			p.doubt = p.doubt || mayBeStored(a)
		}
		if ended := p.waitBeforeRetry(ctx, after, err); ended != nil {
			return a, p.withDoubt(ended)
		}
	}
}

// waitsForPerson reports whether an answer stays the same until a person has acted, so that the command should
// print it at once.
func (g *Gateway) waitsForPerson(a wholeAnswer) bool {
	var p *api.Problem
	return errors.As(g.failureError(a), &p) && p.Type == api.ProblemBase+api.LedgerStopped
}

// attemptOnce makes one attempt with a timeout.
func (p *retrier) attemptOnce(ctx context.Context, r request) (wholeAnswer, error) {
	limited, cancel := context.WithTimeout(ctx, min(p.each, max(time.Until(p.until), time.Second)))
	defer cancel()
	a, err := p.g.sendAndRead(limited, r)
	if err != nil {
		sent := !neverSent(err)
		p.doubt = p.doubt || sent
		if sent && limited.Err() != nil && ctx.Err() == nil {
			err = errSilent
		}
		return wholeAnswer{}, err
	}
	return a, nil
}

// waitBeforeRetry waits before the next attempt. If no time is left for another attempt, it returns
// an error.
func (p *retrier) waitBeforeRetry(ctx context.Context, after time.Duration, err error) error {
	if !errors.Is(err, errSilent) || p.said == nil {
		p.said = err
	}
	said := p.said
	p.g.trouble.Store(&said)
	d := p.wait.next(after)
	if time.Now().Add(d).After(p.until) {
		return fmt.Errorf("%w (tried for %s)", p.said, p.within)
	}
	p.g.log.Debug("client: the gateway does not answer; retrying", "after", d, "reason", err)
	if ended := retry.Sleep(ctx, d); ended != nil {
		return errors.Join(err, ended)
	}
	return nil
}

// withDoubt adds ErrInDoubt to an error if an attempt may have stored the events.
func (p *retrier) withDoubt(err error) error {
	if p.reads || !p.doubt || errors.Is(err, broker.ErrInDoubt) {
		return err
	}
	return fmt.Errorf("%w: %w", broker.ErrInDoubt, err)
}

// mayBeStored reports whether events may have been stored despite a failure. A gateway's answer
// says so, and after a proxy's answer it is unknown.
func mayBeStored(a wholeAnswer) bool {
	p, ok := problemOf(a)
	if !ok {
		return a.status != http.StatusServiceUnavailable && a.status != http.StatusTooManyRequests
	}
	return p.Type == api.ProblemBase+api.InDoubt
}

func hasEvents(a wholeAnswer) bool {
	p, ok := problemOf(a)
	return ok && len(p.Events) > 0
}
