//go:build real

package drift

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tidemill.dev/broker/brokertest/realservers"
)

// For each stream of right and wrong answers: the accuracy of the first answers, that of the last ones at our alarm, and the
// answer at which ADWIN sees a change.
const riverScript = `
import json, sys
from river import drift, metrics, utils
def accuracy(some):
    m = metrics.Accuracy()
    for right in some:
        m.update(True, right == 1)
    return m.get()
def found(stream):
    d = drift.ADWIN()
    for i, right in enumerate(stream):
        d.update(right)
        if d.drift_detected:
            return i + 1
    return 0
asked = json.load(sys.stdin)
json.dump([[accuracy(a["Right"][:a["First"]]), accuracy(a["Right"][a["At"]-a["Last"]:a["At"]]), found(a["Right"])] for a in asked], sys.stdout)
`

// watched is a stream of answers, and our alarm.
type watched struct {
	Right           []int
	First, Last, At int // values of the reference and of the last ones, and the answer at which the alarm came; 0: none
	change          Change
}

// The shares of an alarm are the accuracies that river computes. On the same streams, half of which change, we find at
// least as many changes within 500 answers as its detector ADWIN, with at most as many false alarms.
func TestRealAlarmsAreRivers(t *testing.T) {
	const streams, reference, changes, within = 400, 500, 1250, 500
	w, r := NewWatch(reference, 5), rand.New(rand.NewPCG(3, 7))
	var all []watched
	for i := range streams {
		one, f, right := watched{First: reference}, new(Figure), 0.75+0.24*r.Float64()
		for n := range 2 * changes {
			if n == changes && i < streams/2 {
				right -= 0.25
			}
			yes := 0
			if r.Float64() < right {
				yes = 1
			}
			one.Right = append(one.Right, yes)
			if !f.AddYes(yes == 1, uint64(n), reference) {
				continue
			}
			if c, turn := w.Look(f, time.Unix(int64(n), 0)); turn == Drifts && one.At == 0 {
				one.At, one.Last, one.change = n+1, c.Values, c
			}
		}
		all = append(all, one)
	}
	var answers [][3]float64
	if err := realservers.AskRiver(t.Context(), riverScript, all, &answers); err != nil {
		t.Fatal(err)
	}
	var ours, theirs, ourFalse, theirFalse int
	count := func(i, at int, found, wrong *int) {
		switch {
		case at == 0:
		case i >= streams/2 || at <= changes:
			*wrong++
		case at <= changes+within:
			*found++
		}
	}
	for i, one := range all {
		a := answers[i]
		if one.At > 0 && (math.Abs(a[0]-one.change.Before) > 1e-12 || math.Abs(a[1]-one.change.Now) > 1e-12) {
			t.Errorf("stream %d: the accuracy fell from %v to %v, and by river from %v to %v", i, one.change.Before, one.change.Now, a[0], a[1])
		}
		count(i, one.At, &ours, &ourFalse)
		count(i, int(a[2]), &theirs, &theirFalse)
	}
	t.Logf("of %d changes we found %d within %d answers and ADWIN %d; false alarms: %d and %d", streams/2, ours, within, theirs, ourFalse, theirFalse)
	if ours < theirs || ourFalse > theirFalse {
		t.Error("ADWIN is better")
	}
}
