//go:build !race

package crash

const raceDetector = false
