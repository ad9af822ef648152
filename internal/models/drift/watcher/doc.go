// Package watcher watches the models of a scorer for drift: it reads answers, inputs and outcomes, and publishes facts
// about figures that have changed and that have returned.
package watcher
