package deliver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/telemetry"
)

// Resolver finds where a function of ours or a Knative Service is now. It is
// asked before each attempt and must not take long; an error is tried again.
type Resolver func(ctx context.Context, to config.Target) (*url.URL, error)

// subscriber is who gets a trigger's events. It is safe for concurrent use.
type subscriber struct {
	trigger  config.Trigger
	static   *url.URL // nil where the resolver is asked
	resolve  Resolver
	header   http.Header // of every request; read only
	known    secrets     // that stand in it
	template *http.Request
	signer   *credentials
	wires    wires
	tracer   trace.Tracer
}

// subscriberOptions are what subscribers share.
type subscriberOptions struct {
	Resolve Resolver // may be nil; then only URLs are found
	Bearer  string   // for functions of ours alone
	Version string   // of ours, for User-Agent
	Tracer  trace.Tracer
}

// newSubscriber opens no connection and no file: what is wrong with them is
// the trouble of the trigger's events, which wait until it is mended.
func newSubscriber(t config.Trigger, o subscriberOptions) (*subscriber, error) {
	s := &subscriber{trigger: t, resolve: o.Resolve, tracer: o.Tracer, signer: newCredentials(t.To.Credentials),
		wires: wires{trust: newTrust(t.To.Credentials), most: t.Delivery.Concurrency}}
	if s.tracer == nil {
		s.tracer = noop.NewTracerProvider().Tracer("")
	}
	s.header = headerOf(o.Version, t.Delivery.Replies)
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

// unresolved is who is asked where there is nobody to ask. What comes of that
// is one trigger's trouble: its attempts fail until there is, and the other
// triggers go on.
func unresolved(context.Context, config.Target) (*url.URL, error) {
	return nil, errors.New("nobody here can tell where services and functions are: give the trigger a url")
}

// egress says what is wrong with an address to post to.
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

// destination names the subscriber in dead letters: its URL without the query,
// in which there may be a secret, or what the config calls it.
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

// withoutURL is an error of net/url without the URL, which may hold a secret.
func withoutURL(err error) error {
	if outer := new(url.Error); errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// close lets the connections go. Attempts that are under way end as they will.
func (s *subscriber) close() { s.wires.close() }

// post is one attempt to deliver the event; attempt counts from one. It ends
// within the trigger's timeout, or when the context does, which is tried again.
// The event's memory is not needed any more when it returns.
func (s *subscriber) post(ctx context.Context, v *broker.View, attempt int) (o outcome) {
	o.attempt.At = time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, s.trigger.Delivery.Timeout, errTimeout)
	defer cancel()
	// A transport may go on to write a request whose answer has come already,
	// and by then the view's memory is another event's. Replies keep some, too.
	own := v.Clone()
	ctx, span := s.begin(ctx, &own, attempt)
	a, hidden, err := s.exchange(ctx, &own)
	if err != nil {
		o.fail(silentVerdict(err), clip(hidden.blot(err.Error())))
	} else {
		s.conclude(ctx, &own, &a, hidden, &o)
	}
	o.attempt.Took = time.Since(o.attempt.At)
	end(span, &o)
	return o
}

func silentVerdict(err error) verdict {
	if errors.Is(err, ErrNotYet) {
		return notYet
	}
	return again
}

// exchange asks and reads the answer. With an error there is none, and it may
// hold the secrets that it returns.
func (s *subscriber) exchange(ctx context.Context, v *broker.View) (a answer, hidden secrets, err error) {
	req, hidden, err := s.request(ctx, v)
	if err != nil {
		return answer{}, nil, err
	}
	transport, err := s.wires.current()
	if err != nil {
		return answer{}, nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return answer{}, hidden, s.silence(ctx, err)
	}
	most := maxAnswer
	if s.mayReply(res.StatusCode) {
		most = maxReply
	}
	return readAnswer(res, most), hidden, nil
}

// mayReply: no status but 200 has replies. 202 says that the work is not done
// yet, and for the rest the contract reserves meanings.
func (s *subscriber) mayReply(status int) bool {
	return status == http.StatusOK && s.trigger.Delivery.Replies
}

// conclude turns an answer into an outcome.
func (s *subscriber) conclude(ctx context.Context, v *broker.View, a *answer, hidden secrets, o *outcome) {
	o.attempt.Status = a.status
	o.kind = judge(a.status)
	switch {
	case o.kind != delivered:
		o.fail(o.kind, complain(a))
		if o.kind == again {
			o.after = retryAfter(a.header.Get("Retry-After"), o.attempt.At)
		}
	case s.mayReply(a.status):
		s.reply(ctx, v, a, o)
	}
	if o.kind != delivered {
		o.attempt.Error = clip(hidden.blot(o.attempt.Error))
		o.attempt.Answer = a.shown(hidden)
	}
}

// reply takes the replies out of a 200.
func (s *subscriber) reply(ctx context.Context, v *broker.View, a *answer, o *outcome) {
	switch {
	case a.broken != nil:
		o.fail(again, s.silence(ctx, fmt.Errorf("the answer broke off: %w", a.broken)).Error())
		return
	case a.long:
		o.fail(refused, fmt.Sprintf("the answer is longer than %d KiB: reply with where the data lies", maxReply>>10))
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
	d, err := descend(v, s.trigger.Name, s.trigger.To.Function != "", now)
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

// end tells the trace what came of the attempt.
func end(span trace.Span, o *outcome) {
	if span.IsRecording() {
		if o.kind != delivered {
			span.SetStatus(codes.Error, o.attempt.Error)
		}
		span.SetAttributes(spanStatus(o.attempt.Status))
	}
	span.End()
}
