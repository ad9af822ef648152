// Package ops is the wing of packages for operators. Telemetry writes logs, traces and metrics;
// status says which processes are up; runmetrics counts what no single process knows; gctune sets
// the garbage collector.
package ops
