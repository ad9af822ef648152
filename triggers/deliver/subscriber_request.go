package deliver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"tidemill.dev/broker"
	"tidemill.dev/internal/cehttp"
	"tidemill.dev/internal/telemetry"
)

// usualHeaders is how many headers a request has besides the event's own.
const usualHeaders = 16

// headerOf is what all requests of a trigger have in common.
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

// request makes the request and tells which secrets it carries.
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
	req.GetBody = func() (io.ReadCloser, error) { return newPayload(body), nil } // for a connection that was closed before we began to write
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

// begin goes on with the event's trace.
func (s *subscriber) begin(ctx context.Context, v *broker.View, attempt int) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(telemetry.ContextOf(ctx, v), "deliver", trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("tidemill.trigger", s.trigger.Name), attribute.Int("tidemill.attempt", attempt),
			attribute.String("cloudevents.event_type", v.Type), attribute.String("cloudevents.event_id", v.ID))
	}
	return ctx, span
}

func spanStatus(code int) attribute.KeyValue { return attribute.Int("http.response.status_code", code) }
