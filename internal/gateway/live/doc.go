// Package live knows which topics have changed, and reports the changes to the listeners of each topic. It has no HTTP.
// A listener learns only that a topic has changed, never how.
package live
