// Package runmetrics counts what no single process has done: how many runs wait, how
// old the newest champion of a recipe is, how many versions were refused. What
// does a thing is often a function, which goes to zero with whatever it has
// counted; so a process that stays reads it from the ledger and the facts. All
// that do so say the same, and an alert takes the most of them.
package runmetrics
