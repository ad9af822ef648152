// Package fleet says in which state each key of each recipe is. It counts, filters, sorts and
// draws tens of thousands of keys from the ledger's list in memory. Its functions do no I/O.
package fleet
