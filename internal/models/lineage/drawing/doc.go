// Package drawing prints a graph of causes and effects: as a tree for a terminal, in the
// DOT language, and as SVG.
//
// The texts in a graph come from other people: keys, messages, reasons, sources of
// events. They are quoted for each output, so that none of them can act as code.
package drawing
