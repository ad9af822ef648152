package telemetry

import (
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
)

// resource is who all spans are from. OTEL_SERVICE_NAME counts before
// OTEL_RESOURCE_ATTRIBUTES, and those before what we know ourselves.
func (e environment) resource(o Options) (*resource.Resource, error) {
	const variable = "OTEL_RESOURCE_ATTRIBUTES"
	said, err := pairs(variable, e.value(variable))
	if err != nil {
		return nil, err
	}
	attrs := []attribute.KeyValue{semconv.ServiceName(o.Name), semconv.ServiceVersion(o.Version),
		semconv.TelemetrySDKName("opentelemetry"), semconv.TelemetrySDKLanguageGo}
	if host, err := os.Hostname(); err == nil {
		attrs = append(attrs, semconv.HostName(host))
	}
	for _, p := range said { // of two of one name the last counts
		attrs = append(attrs, attribute.String(p.name, p.value))
	}
	if name := e.value("OTEL_SERVICE_NAME"); name != "" {
		attrs = append(attrs, semconv.ServiceName(name))
	}
	return resource.NewSchemaless(attrs...), nil
}
