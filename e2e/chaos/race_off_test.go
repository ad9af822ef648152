//go:build !race

package chaos

import "time"

const raceDetector = false

// session is short, so that a round is: who is killed is missed after it.
const session = 1500 * time.Millisecond
