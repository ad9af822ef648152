// Package measure counts the outcomes of each version of a model: right answers, confusion, calibration and days.
// It publishes the sums as facts. The facts are its only state, so a process that takes over continues from
// them, and counts no outcome twice.
package measure
