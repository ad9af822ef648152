package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
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
	u := g.urlOf(r.path)
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

// urlOf returns the URL of a path. A part may be any text that a person gives as a name, so it must not change the
// other parts, as the text ../runs would.
func (g *Gateway) urlOf(path []string) *url.URL {
	u := *g.base
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.EscapedPath(), "/")
	for _, part := range path {
		u.Path, u.RawPath = u.Path+"/"+part, u.RawPath+"/"+url.PathEscape(part)
	}
	return &u
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
