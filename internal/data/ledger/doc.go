// Package ledger is the fold of the facts, cached in Redis: append a fact, catch
// up, read, and know what is due. See DESIGN.md.
package ledger
