package deliver

import (
	"time"

	"tidemill.dev"
)

// pace says when an act's letters are due, so that all partitions together keep
// to its rate and need not know of each other: each letter has its place in the
// whole, and the time of that place.
type pace struct {
	act  *tidemill.LetterReplay
	late time.Duration // by which everything is later than was asked
}

// lateness is how far behind its time a letter may be taken in before the rest
// is put off, too: who could not go on for an hour does not make good for it all
// at once.
const lateness = time.Second

// longestPace keeps times within what a duration can tell, however small a rate is.
const longestPace = 100 * 365 * 24 * time.Hour

// due is when the letter of an index in the act may be taken in.
func (p *pace) due(index int) time.Time {
	if p.act.Rate <= 0 {
		return p.act.At
	}
	seconds := min(float64(p.act.First+index)/p.act.Rate, longestPace.Seconds())
	return p.act.At.Add(p.late + time.Duration(seconds*float64(time.Second)))
}

// goOn begins with the letter of an index now, if it is due.
func (p *pace) goOn(index int, now time.Time) {
	if behind := now.Sub(p.due(index)); p.act.Rate > 0 && behind > lateness {
		p.late += behind
	}
}
