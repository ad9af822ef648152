//go:build !race

package wire

// RaceDetector is true in programs that are built with -race.
const RaceDetector = false
