// Package runmetrics has the metrics that no single process can count: waiting runs, the age of the
// newest champion of each recipe, refused versions. A function that does the work may scale to zero
// and lose its counters. So a process that keeps running computes these metrics from the ledger and
// the facts. Every such process reports the same values, and an alert takes their maximum.
package runmetrics
