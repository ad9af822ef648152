// Package trials lets candidates answer the stream of a scorer next to the champion, and ends their trials by
// the evidence. Read DESIGN.md first.
package trials
