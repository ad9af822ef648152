package tidemill

import (
	"fmt"
	"strings"
)

// Streams that every install has.
const (
	StreamEvents      = "events"       // outside events of every type that no other stream claims
	StreamFacts       = "facts"        // requests and changes of runs, models and data; never expires
	StreamProgress    = "progress"     // steps of runs
	StreamDeadLetters = "dead-letters" // events that could not be read, delivered or scored; never expires
	StreamCommands    = "commands"     // requests of people; never expires
	StreamClock       = "clock"        // progress of the controller with the schedules

	StreamOutcomes = "outcomes" // answers of scorers, each together with its truth

	// StreamGroupOffsets holds how far our consumer groups have read, because Kafka forgets a group that
	// has had no members for a week. It never expires.
	StreamGroupOffsets = "group-offsets"
)

const parkedSuffix = ".parked"

// Parked returns the stream for a stream's events that cannot be delivered yet. They wait
// there so that events of other keys need not wait for them.
func Parked(stream string) string { return stream + parkedSuffix }

// CutParked returns the stream whose events wait on the given stream; false if the given
// stream is not for parked events.
func CutParked(stream string) (string, bool) { return strings.CutSuffix(stream, parkedSuffix) }

// Bookmarked reports whether the offsets that groups commit on a stream only say where to
// begin a search. They do not say how far a group has read, so such a group has no lag.
func Bookmarked(stream string) bool {
	_, parked := CutParked(stream)
	return parked || stream == StreamClock
}

// FixedPartitions reports whether a stream must keep its number of partitions for ever.
// Tidemill computes its state from the order of these streams. With more partitions most
// keys would move, and the order of a key's older and newer events would be lost. The outcomes of
// a key are looked for in one partition.
func FixedPartitions(stream string) bool {
	switch stream {
	case StreamFacts, StreamDeadLetters, StreamCommands, StreamClock, StreamOutcomes:
		return true
	}
	return false
}

// ReservedStream returns an error if only Tidemill itself may write to a stream.
func ReservedStream(stream string) error {
	_, parked := CutParked(stream)
	switch stream {
	case StreamFacts, StreamProgress, StreamDeadLetters, StreamCommands, StreamClock, StreamGroupOffsets, StreamOutcomes:
	default:
		if !parked {
			return nil
		}
	}
	return fmt.Errorf("stream %q is reserved: only Tidemill writes to it; publish to %q, or to a stream of yours", stream, StreamEvents)
}

// ScorerParked returns the stream where events wait for models that a scorer has not loaded yet.
func ScorerParked(scorer string) string { return Parked(scorerStreams + scorer) }

// ScorerStream reports whether a stream has the name of a scorer's own stream.
func ScorerStream(stream string) bool { return strings.HasPrefix(stream, scorerStreams) }

// ScorerGroup returns the name of a scorer's consumer group.
func ScorerGroup(scorer string) string { return scorerStreams + scorer }

// TriggersGroup returns the name of the consumer group that serves a stream's triggers.
func TriggersGroup(stream string) string { return "triggers." + stream }

// scorerStreams is the prefix of the names of streams and groups that belong to scorers.
const scorerStreams = "scorer."
