package tidemill

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Canary says how a version that has passed its gate answers a share of the events beside the champion, before it may
// become the champion.
type Canary struct {
	Share float64       `json:"share"`        // share of the events that it answers, above 0 and below 1
	By    string        `json:"by,omitempty"` // place in the event whose value decides, such as data.user; empty for the event's source and id
	Hold  time.Duration `json:"hold"`         // least time until it is promoted
	Least int           `json:"least"`        // least number of its outcomes until it is promoted
	Until time.Duration `json:"until"`        // time after which it is refused if there are fewer outcomes
	Worse float64       `json:"worse"`        // margin of accuracy by which it may be worse
}

// CanaryTakes reports whether a canary answers an event, given the value that decides. Values of one model and version
// stay on their side.
func CanaryTakes(model string, version int, value []string, share float64) bool {
	sum := sha256.Sum256(appendParts(appendParts(make([]byte, 0, 256), "canary", VersionName(model, version)), value...))
	return float64(binary.BigEndian.Uint64(sum[:])>>11)/(1<<53) < share
}
