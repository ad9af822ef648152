// Package gctune lets garbage come together while a process makes much of it, and
// gives memory back to the system while it makes little.
//
// Go's collector runs when the heap has doubled. That is often where little is
// alive, as in a gateway: kilobytes a request would have it run fifty times a
// second. And what a process took in its busiest moment it keeps for as long as
// it does not need the room again: the collector returns what lies above its
// goal, and the goal is that of the last collection.
package gctune
