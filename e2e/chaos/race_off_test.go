//go:build !race

package chaos

import "time"

const raceDetector = false

// session is short, so that a round is short: the group notices a killed member only after the
// session's timeout.
const session = 1500 * time.Millisecond
