//go:build slow && !race

package crash

const raceDetector = false
