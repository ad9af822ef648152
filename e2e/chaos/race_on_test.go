//go:build race

package chaos

import "time"

const raceDetector = true

// session is longer with the race detector, because a busy machine may otherwise lose a living
// member.
const session = 4 * time.Second
