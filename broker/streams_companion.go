package broker

import (
	"math"
	"strconv"

	"tidemill.dev"
)

// parkedRoom is what parking may add to an event: attributes of ours, and the
// beginning of the last answer.
const parkedRoom = 64 << 10

// companion is the spec of a .parked stream as its source makes it, for the
// source may not be as the config wants it. What waits is written to the
// partition that it came from, so there are never fewer of them; and it is a
// little larger than it was, so that must fit. Either may be more than is
// needed: nothing shrinks.
//
// A source that this round creates or grows is found so in the next.
func companion(s StreamSpec, found foundStreams) StreamSpec {
	of, parked := s.Beside, true
	if of == "" {
		of, parked = tidemill.CutParked(s.Name)
	}
	source, there := found.streams[of]
	if !parked || !there {
		return s
	}
	have := found.streams[s.Name]
	s.KeyOrdered = false // no key chooses a partition there
	s.Partitions = max(source.partitions, have.partitions)
	s.MaxMessageBytes = max(s.MaxMessageBytes, messageSize(source)+parkedRoom)
	if have.settings[settingMessageSize].own {
		s.MaxMessageBytes = max(s.MaxMessageBytes, messageSize(have))
	}
	return s
}

// messageSize is the largest batch that a stream takes; less than there is if
// Kafka does not say.
func messageSize(s foundStream) int {
	n, err := strconv.Atoi(s.settings[settingMessageSize].value)
	if err != nil || n < 0 {
		return 0
	}
	return min(n, math.MaxInt32-parkedRoom) // the setting is a number of 32 bits
}
