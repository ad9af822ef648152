// Package champions follows the facts and keeps a table of the champion of each model in
// memory. The table is never older than the position that it reports.
//
// The table starts from the ledger's state in Redis, which may be newer or older than the
// position of the log's reader. From exactly that state on it folds the facts with the
// ledger's own fold. So it needs Redis to begin, but not to continue.
//
// Scorers exchange positions in the facts. A scorer that has used a champion records the position
// of the facts that it had read. The next owner of its partition waits until its own table has
// reached that position. This is safe because of an order: a fact is counted in Places before a
// reader can see its effect, and in Reached only after every reader can see it.
package champions
