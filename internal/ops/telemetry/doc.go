// Package telemetry is how a process of ours tells what it does: one format for
// its log, metrics for Prometheus, and traces for OpenTelemetry that follow an
// event through Kafka. docs/metrics.md lists all of it.
//
// It keeps no state that a whole process shares: neither OpenTelemetry's nor
// Prometheus's global registries are touched, so that what one part registers
// is what one door shows.
package telemetry
