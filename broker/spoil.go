//go:build !race

package broker

// spoil and spoilEvents are for the race detector.
func spoil([]byte)           {}
func spoilEvents([]Incoming) {}
