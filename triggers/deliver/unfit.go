package deliver

import (
	"fmt"

	"tidemill.dev/broker"
)

// parkedRoom is what a record may add to an event: its header with the history.
const parkedRoom = 64 << 10

// unfit says why an event cannot be parked; empty if it can. One such event would
// make every transaction fail that it is in, and none could be done without it.
// So it is a dead letter at once: who may not wait cannot be tried again either.
func (p *partition) unfit(v *broker.View) string {
	if size := viewSize(v); size > p.bounds.event {
		return fmt.Sprintf("the event cannot be parked and so could not be tried again: it has %d KiB, and %d are allowed", size>>10, p.bounds.event>>10)
	}
	return ""
}
