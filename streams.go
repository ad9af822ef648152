package tidemill

import (
	"fmt"
	"strings"
)

// Streams that every install has.
const (
	StreamEvents      = "events"       // home of every outside type that no other stream claims
	StreamFacts       = "facts"        // what was asked and what happened; never expires
	StreamProgress    = "progress"     // steps of runs
	StreamDeadLetters = "dead-letters" // what could not be delivered; never expires
	StreamCommands    = "commands"     // what people asked for; never expires
	StreamClock       = "clock"        // how far the controller has come with the schedules
)

const parkedSuffix = ".parked"

// Parked is the stream where a stream's events wait that could not yet be
// delivered, so that other keys behind them need not.
func Parked(stream string) string { return stream + parkedSuffix }

// CutParked is the stream whose events wait on the given one; false if the
// given one is not for parking.
func CutParked(stream string) (string, bool) { return strings.CutSuffix(stream, parkedSuffix) }

// Bookmarked reports whether the offsets that groups commit on a stream are
// marks to begin a search at, and not how far somebody has read: nobody lags
// behind there.
func Bookmarked(stream string) bool {
	_, parked := CutParked(stream)
	return parked || stream == StreamClock
}

// ReservedStream says why a stream takes no event from outside, if it does not:
// only Tidemill itself writes to it.
func ReservedStream(stream string) error {
	_, parked := CutParked(stream)
	switch stream {
	case StreamFacts, StreamProgress, StreamDeadLetters, StreamCommands, StreamClock:
	default:
		if !parked {
			return nil
		}
	}
	return fmt.Errorf("stream %q is reserved: only Tidemill writes to it; publish to %q, or to a stream of yours", stream, StreamEvents)
}

// ScorerParked is the stream where events wait for the models that a scorer has
// yet to load.
func ScorerParked(scorer string) string { return Parked(scorerStreams + scorer) }

// ScorerStream reports whether a stream is a scorer's own, or has such a name.
func ScorerStream(stream string) bool { return strings.HasPrefix(stream, scorerStreams) }

// ScorerGroup is the name by which the group of a scorer reads.
func ScorerGroup(scorer string) string { return scorerStreams + scorer }

// scorerStreams begins the names of streams that belong to scorers.
const scorerStreams = "scorer."
