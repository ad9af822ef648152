package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/credentials"
)

// dial makes the exporter. Nothing is connected yet: a collector that is away
// now may be there for the first span.
func (c *collector) dial(ctx context.Context) (sdk.SpanExporter, error) {
	if c.grpc {
		return c.dialGRPC(ctx)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: c.timeout, IdleConnTimeout: time.Minute}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(c.endpoint.String()), otlptracehttp.WithHeaders(c.headers),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport, Timeout: c.timeout})}
	if c.gzip {
		options = append(options, otlptracehttp.WithCompression(otlptracehttp.GzipCompression))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", c.endpoint.Redacted(), err)
	}
	return closing{exporter, transport}, nil
}

func (c *collector) dialGRPC(ctx context.Context) (sdk.SpanExporter, error) {
	options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(c.endpoint.String()), otlptracegrpc.WithHeaders(c.headers),
		otlptracegrpc.WithTimeout(c.timeout)}
	if c.tls != nil {
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(c.tls)))
	}
	if c.gzip {
		options = append(options, otlptracegrpc.WithCompressor("gzip"))
	}
	exporter, err := otlptracegrpc.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export to %s: %w", c.endpoint.Redacted(), err)
	}
	return exporter, nil
}

// closing closes the exporter's connections behind it. Its own transport would
// be shared by the whole process and keep them.
type closing struct {
	sdk.SpanExporter
	transport *http.Transport
}

func (c closing) Shutdown(ctx context.Context) error {
	defer c.transport.CloseIdleConnections()
	return c.SpanExporter.Shutdown(ctx)
}
