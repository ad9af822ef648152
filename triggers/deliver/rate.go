package deliver

import "time"

// bucket bounds a trigger's attempts to a rate. It holds one second's worth,
// so that attempts may come in a burst, and at least one, so that a rate of
// less than one a second works too. It never waits: the dispatcher asks again
// at the time that it is told. It is not safe for concurrent use.
type bucket struct {
	rate   float64 // tokens a second; 0 is no bound
	most   float64
	tokens float64
	at     time.Time // when the tokens were counted
}

// newBucket is full.
func newBucket(rate float64) *bucket {
	most := max(rate, 1)
	return &bucket{rate: rate, most: most, tokens: most}
}

// longestNext keeps the time until a token a duration, however small the rate.
const longestNext = 24 * time.Hour

// take takes a token if there is one, else it says when there will be.
func (b *bucket) take(now time.Time) (ok bool, next time.Time) {
	if b.rate <= 0 {
		return true, now
	}
	if passed := now.Sub(b.at); passed > 0 { // a clock that goes back gives nothing
		if !b.at.IsZero() {
			b.tokens = min(b.most, b.tokens+b.rate*passed.Seconds())
		}
		b.at = now
	}
	if b.tokens >= 1 {
		b.tokens--
		return true, now
	}
	return false, b.at.Add(b.until())
}

// until is rounded up, so that who comes then does not come in vain.
func (b *bucket) until() time.Duration {
	const margin = time.Microsecond // of the floating point
	seconds := (1 - b.tokens) / b.rate
	if seconds >= longestNext.Seconds() {
		return longestNext
	}
	return time.Duration(seconds*float64(time.Second)) + margin
}
