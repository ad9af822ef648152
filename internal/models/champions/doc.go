// Package champions follows the facts for which version of each model is the
// champion: a table in memory that is never older than what it says it has read.
//
// It begins with what the ledger has in Redis, which may be ahead of where the
// reader of the log would be or behind it, and folds the facts from exactly there
// on, with the ledger's own fold. So it needs Redis to begin, and not to go on.
//
// Scorers tell each other places among the facts: who has scored something by a
// champion says up to where the facts were read for it, and who goes on from there
// waits until its own table is as new. That holds because of an order. What is
// being applied is counted in Places before anybody can see it, and counted as
// Reached only after everybody can.
package champions
