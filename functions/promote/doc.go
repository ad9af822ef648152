// Package promote is the function of ours that judges: a run's end in, on the log
// the version that it made, what its gate says of it, and, if the log agrees, a
// new champion. It answers with no events, as what it says are facts.
//
// What it says follows from the event and the log alone, and every fact is named
// after what it follows from: the same end, delivered again, changes nothing.
package promote
