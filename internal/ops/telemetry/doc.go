// Package telemetry has the log format, the Prometheus metrics and the OpenTelemetry traces of
// every process. Traces follow an event through Kafka. docs/metrics.md lists all metrics.
//
// The package has no global state, and does not use the global registries of OpenTelemetry and
// Prometheus. So each listener shows exactly the metrics of its own part.
package telemetry
