//go:build !race

package chaos

import "time"

const raceDetector = false

// session is short, so that a round is short: a group notices a killed member only after it.
const session = 1500 * time.Millisecond
