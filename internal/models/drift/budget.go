package drift

import (
	"math"
	"time"
)

// Budget turns a number of false alarms a day over the whole fleet into the e-value that an alarm needs. A look
// without a change reaches the e-value A with a probability of at most 1/A, so if a day has L looks and A is
// L divided by the budget, the expected number of false alarms a day is at most the budget.
//
// The clock is that of the answers, not of this process, so a day of answers that is read in a minute has the budget
// of a day.
type Budget struct {
	Begun time.Time `json:"begun"`
	At    time.Time `json:"at"`
	Looks float64   `json:"looks"` // looks of the past, with a weight that falls by e each day
}

// fewestLooks bounds the threshold from below while the first looks say little about the rate of looks.
const fewestLooks = 20_000

// Threshold counts a look and returns the e-value that an alarm needs.
func (b *Budget) Threshold(at time.Time, falseAlarmsADay float64) float64 {
	const day = float64(24 * time.Hour)
	if b.Begun.IsZero() {
		b.Begun, b.At = at, at
	}
	if past := at.Sub(b.At); past > 0 {
		b.Looks *= math.Exp(-float64(past) / day)
		b.At = at
	}
	b.Looks++
	return b.Needed(falseAlarmsADay)
}

// Needed returns the e-value that an alarm needs now.
func (b *Budget) Needed(falseAlarmsADay float64) float64 {
	const day = float64(24 * time.Hour)
	age := max(b.At.Sub(b.Begun), time.Hour)
	perDay := b.Looks / -math.Expm1(-float64(age)/day)
	return max(perDay, fewestLooks) / falseAlarmsADay
}
