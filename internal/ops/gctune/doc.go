// Package gctune sets how often Go's garbage collector runs: seldom while a process
// allocates much, and often enough to give memory back when it allocates little.
//
// The collector runs when the heap has doubled. In a process with little live memory,
// such as a gateway, that would be fifty times a second. After a busy time the process
// would also keep its memory, because the collector returns only memory above its goal,
// and the goal is that of the last collection.
package gctune
