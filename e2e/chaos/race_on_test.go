//go:build race

package chaos

import "time"

const raceDetector = true

// session is longer than without the detector: under it a busy machine loses a
// member that lives.
const session = 4 * time.Second
