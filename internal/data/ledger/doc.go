// Package ledger keeps the state of every run and model, computed from the facts, in Redis.
// It appends facts and lists the runs that are due. See DESIGN.md.
package ledger
