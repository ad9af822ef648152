package deliver

import (
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// Attempt is one try to deliver an event, as its dead letter will tell of it.
// It holds no credential of ours: what a subscriber repeats of them is blotted
// out.
type Attempt = letters.Attempt

// outcome is what came of an attempt.
type outcome struct {
	kind    verdict
	replies []broker.View // ready to be published; their memory is their own
	after   time.Duration // how long the subscriber asks to be left alone at least
	attempt Attempt
}

// fail ends an attempt that did not deliver. What was to be published is not.
func (o *outcome) fail(kind verdict, reason string) {
	o.kind, o.replies, o.attempt.Error = kind, nil, reason
}
