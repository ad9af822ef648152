//go:build race

package chaos

import "time"

const raceDetector = true

// session is longer than without the race detector, because with it a busy machine may lose a
// living member.
const session = 4 * time.Second
