// Package score is the streaming scorer: it scores every event of a stream with the
// champion of the event's key, exactly once. See DESIGN.md.
package score
