// Package transfer carries files between a folder and a gateway, for agents and
// for `tidemill data`: only the objects that are missing, several at once.
//
// What is read is opened beneath the folder and nowhere else, though somebody
// swaps a link meanwhile. What is written appears under its name only when it is
// whole and its digest is right. Memory does not grow with the size of files.
package transfer
