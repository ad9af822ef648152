// Package score is the streaming scorer: every event of a stream by its key's
// champion, exactly once. See DESIGN.md.
package score
