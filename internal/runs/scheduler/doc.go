// Package scheduler brings what the log has accepted about: it asks for runs, starts
// those that are due in the slots of their pools, and finds out who was lost.
package scheduler
