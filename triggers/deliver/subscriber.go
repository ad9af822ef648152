package deliver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/broker/network"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/keys"
)

// Resolver finds the address of one of Tidemill's functions or of a Knative Service. It is called
// before each attempt and must not take long; after an error the attempt is made again.
type Resolver func(ctx context.Context, to config.Target) (*url.URL, error)

// subscriber receives a trigger's events. It is safe for concurrent use.
type subscriber struct {
	trigger     config.Trigger
	static      *url.URL // nil if the resolver is used
	resolve     Resolver
	header      http.Header // header of every request; read-only
	known       secrets     // secrets in that header
	template    *http.Request
	signer      *credentials
	connections connections
	tracer      trace.Tracer
	takers      func() *keys.Takers
}

// subscriberOptions are common to all subscribers.
type subscriberOptions struct {
	Resolve Resolver // may be nil; then only URLs work
	Bearer  string   // token for Tidemill's own functions only
	Version string   // version of Tidemill, for User-Agent
	Tracer  trace.Tracer
	Network network.Network
	Takers  func() *keys.Takers // takers of keys in the config in force
}

// newSubscriber opens no connection and no file. A later error with them affects only the
// trigger's events, which wait until it is repaired.
func newSubscriber(t config.Trigger, o subscriberOptions) (*subscriber, error) {
	s := &subscriber{trigger: t, resolve: o.Resolve, tracer: o.Tracer, signer: newCredentials(t.To.Credentials), takers: o.Takers,
		connections: connections{trust: newTrust(t.To.Credentials), most: t.Delivery.Concurrency, over: o.Network}}
	if s.tracer == nil {
		s.tracer = noop.NewTracerProvider().Tracer("")
	}
	s.header = headerOf(o.Version, t.Delivery.Replies.Accept)
	if o.Bearer != "" && t.To.Function != "" {
		s.header["Authorization"], s.known = []string{"Bearer " + o.Bearer}, secrets{o.Bearer}
	}
	s.template = &http.Request{Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	switch {
	case t.To.URL != "":
		to, err := url.Parse(t.To.URL)
		if err == nil {
			err = egress(to)
		}
		if err != nil {
			return nil, fmt.Errorf("trigger %s: the url of its subscriber: %w", t.Name, withoutURL(err))
		}
		s.static = to
	case o.Resolve == nil:
		s.resolve = unresolved
	}
	return s, nil
}

// unresolved is the default resolver. The attempts of its trigger fail; other triggers continue.
func unresolved(context.Context, config.Target) (*url.URL, error) {
	return nil, errors.New("this process cannot find services and functions: give the trigger a url")
}

// egress returns what is wrong with a URL to post to.
func egress(to *url.URL) error {
	switch {
	case to.Scheme != "http" && to.Scheme != "https":
		return fmt.Errorf("its scheme is %.20q: only http and https are spoken", to.Scheme)
	case to.Host == "":
		return errors.New("it names no host")
	case to.User != nil:
		return errors.New("it holds a user or a password: put them into a file, and name that as basicFile")
	}
	return nil
}

// destination names the subscriber in dead letters: its URL without the query, which
// may contain a secret, or its name in the config.
func (s *subscriber) destination() string {
	switch to := s.trigger.To; {
	case s.static != nil:
		shown := *s.static
		shown.RawQuery, shown.Fragment = "", ""
		return shown.String()
	case to.Service != "":
		return "service/" + to.Service
	default:
		return "function/" + to.Function
	}
}

// withoutURL returns an error of net/url without the URL, which may contain a secret.
func withoutURL(err error) error {
	if outer := new(url.Error); errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// close closes idle connections. Attempts under way continue.
func (s *subscriber) close() { s.connections.close() }

// post makes one attempt to deliver the event; attempt counts from one. It ends within
// the trigger's timeout or when the context ends, and then the event is retried.
// Afterwards the event's memory is no longer used.
func (s *subscriber) post(ctx context.Context, v *broker.View, attempt int) (o attemptResult) {
	o.attempt.At = time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.trigger.Delivery.Timeout, errTimeout)
	defer cancel()
	// A transport may still write a request whose answer has already come. By then the
	// view's memory may be reused, so post uses a copy. Replies keep parts of it, too.
	own := v.Clone()
	ctx, span := s.begin(ctx, &own, attempt)
	a, hidden, err := s.exchange(ctx, &own)
	if err != nil {
		o.fail(silentVerdict(err), shorten(hidden.redact(err.Error())))
	} else {
		s.conclude(ctx, &own, &a, hidden, &o)
	}
	o.attempt.Took = time.Since(o.attempt.At)
	endSpan(span, &o)
	return o
}

func silentVerdict(err error) verdict {
	if errors.Is(err, ErrNotYet) {
		return notYet
	}
	return again
}

// exchange sends the request and reads the answer. The error may contain the secrets
// that it returns.
func (s *subscriber) exchange(ctx context.Context, v *broker.View) (a subscriberAnswer, hidden secrets, err error) {
	req, hidden, err := s.request(ctx, v)
	if err != nil {
		return subscriberAnswer{}, nil, err
	}
	transport, err := s.connections.current()
	if err != nil {
		return subscriberAnswer{}, nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return subscriberAnswer{}, hidden, s.silence(ctx, err)
	}
	most := maxAnswer
	if s.mayReply(res.StatusCode) {
		most = maxReply
	}
	return readAnswer(res, most), hidden, nil
}

// mayReply reports whether a status can have replies. Only 200 can: 202 means that the
// work is not done yet, and the contract reserves the others.
func (s *subscriber) mayReply(status int) bool {
	return status == http.StatusOK && s.trigger.Delivery.Replies.Accept
}

// conclude turns an answer into a result.
func (s *subscriber) conclude(ctx context.Context, v *broker.View, a *subscriberAnswer, hidden secrets, o *attemptResult) {
	o.attempt.Status = a.status
	o.kind = judge(a.status)
	switch {
	case o.kind != delivered:
		o.fail(o.kind, errorOf(a))
		if o.kind == again {
			o.after = retryAfter(a.header.Get("Retry-After"), o.attempt.At)
		}
	case s.mayReply(a.status):
		s.reply(ctx, v, a, o)
	default:
		o.ignored = a.status == http.StatusOK && s.trigger.Delivery.Replies.Unsaid && isEvent(a.header)
	}
	if o.kind != delivered {
		o.attempt.Error = shorten(hidden.redact(o.attempt.Error))
		o.attempt.Answer = a.shown(hidden)
	}
}

// reply takes the replies out of a 200.
func (s *subscriber) reply(ctx context.Context, v *broker.View, a *subscriberAnswer, o *attemptResult) {
	switch {
	case a.broken != nil:
		o.fail(again, s.silence(ctx, fmt.Errorf("the answer broke off: %w", a.broken)).Error())
		return
	case a.long:
		o.fail(refused, fmt.Sprintf("the answer is longer than %d KiB: reply with the location of the data", maxReply>>10))
		return
	}
	replies, err := readReplies(a.header, a.body)
	if err == nil {
		err = s.stampAll(ctx, v, replies, o.attempt.At)
	}
	if err != nil {
		o.fail(refused, err.Error())
		return
	}
	o.replies = replies
}

func (s *subscriber) stampAll(ctx context.Context, v *broker.View, replies []broker.View, now time.Time) error {
	if len(replies) == 0 {
		return nil
	}
	d, err := causationOf(v, &s.trigger, s.takers(), now)
	if err != nil {
		return err
	}
	for i := range replies {
		telemetry.Remember(ctx, &replies[i])
		if err := d.stamp(i, &replies[i]); err != nil {
			return fmt.Errorf("reply %d: %w", i, err)
		}
	}
	return nil
}

// endSpan ends the trace's span with the result of the attempt.
func endSpan(span trace.Span, o *attemptResult) {
	if span.IsRecording() {
		if o.kind != delivered {
			span.SetStatus(codes.Error, o.attempt.Error)
		}
		span.SetAttributes(spanStatus(o.attempt.Status))
	}
	span.End()
}

// usualHeaders is the number of headers of a request besides the event's own.
const usualHeaders = 16

// headerOf returns the headers that all requests of a trigger have.
func headerOf(version string, replies bool) http.Header {
	agent := "tidemill"
	if version != "" {
		agent += "/" + version
	}
	h := http.Header{"User-Agent": {agent}}
	if replies {
		h["Prefer"] = []string{"reply"}
	}
	return h
}

// request returns the request and the secrets in it.
func (s *subscriber) request(ctx context.Context, v *broker.View) (*http.Request, secrets, error) {
	to, err := s.where(ctx)
	if err != nil {
		return nil, nil, err
	}
	h := make(http.Header, usualHeaders+len(v.Extensions))
	maps.Copy(h, s.header)
	body := cehttp.WriteBinary(h, v)
	telemetry.Forward(ctx, h)
	hidden, err := s.signer.sign(h)
	if err != nil {
		return nil, nil, err
	}
	if hidden == nil {
		hidden = s.known
	}
	req := s.template.WithContext(ctx)
	req.URL, req.Host, req.Header = to, to.Host, h
	req.ContentLength = int64(len(body))
	req.Body = newPayload(body)
	req.GetBody = func() (io.ReadCloser, error) { return newPayload(body), nil } // allows a retry on a connection that was closed before the first byte
	return req, hidden, nil
}

func (s *subscriber) where(ctx context.Context) (*url.URL, error) {
	if s.static != nil {
		return s.static, nil
	}
	to, err := s.resolve(ctx, s.trigger.To)
	if err == nil {
		err = egress(to)
	}
	if err != nil {
		return nil, fmt.Errorf("find the subscriber %s: %w", s.trigger.To.Service+s.trigger.To.Function, err)
	}
	return to, nil
}

// payload is a request's body.
type payload struct{ bytes.Reader }

func newPayload(b []byte) io.ReadCloser {
	if len(b) == 0 {
		return http.NoBody
	}
	p := new(payload)
	p.Reset(b)
	return p
}

func (*payload) Close() error { return nil }

// begin continues the event's trace.
func (s *subscriber) begin(ctx context.Context, v *broker.View, attempt int) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(telemetry.ContextOf(ctx, v), "deliver", trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("tidemill.trigger", s.trigger.Name), attribute.Int("tidemill.attempt", attempt),
			attribute.String("cloudevents.event_type", v.Type), attribute.String("cloudevents.event_id", v.ID))
	}
	return ctx, span
}

func spanStatus(code int) attribute.KeyValue { return attribute.Int("http.response.status_code", code) }

var errTimeout = errors.New("the attempt's time is over")

// silence returns why there was no complete answer.
func (s *subscriber) silence(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errTimeout):
		return fmt.Errorf("no answer within %s", s.trigger.Delivery.Timeout)
	case cause != nil:
		return fmt.Errorf("the attempt was cut short: %w", cause)
	}
	return fmt.Errorf("no answer: %w%s", err, hint(err))
}

// hint returns the next step after a TLS error, if one is known.
func hint(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &unknown):
		return ": give the CA that signed the subscriber's certificate as the trigger's caFile"
	case errors.As(err, &name):
		return ": give a url with a name that is in the subscriber's certificate"
	case errors.As(err, &record):
		return ": the subscriber may not speak TLS on this port: give its url with http, or another port"
	}
	return ""
}
