// Package sim runs whole installs of Tidemill in virtual time, with faults that a seed decides. It
// judges them from the outside: by the streams, and by what publishers, subscribers and attempts saw.
// Read DESIGN.md first.
package sim
