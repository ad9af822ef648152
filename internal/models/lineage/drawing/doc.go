// Package drawing draws what a thing came from and what came of it: as a tree
// for a terminal, in the DOT language, and as an SVG of its own layout.
//
// What stands in a graph was chosen by strangers: keys, messages, reasons, the
// sources of events. Nothing of it is obeyed, whatever it is drawn for.
package drawing
