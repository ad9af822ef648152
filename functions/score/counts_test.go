package score

import (
	"testing"
	"time"
)

// The first dead letter is logged at once. Later ones are counted and logged together from time
// to time.
func TestDeadLettersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	var c counts
	begin := time.Unix(1_700_000_000, 0)
	for _, step := range []struct {
		after      time.Duration
		more, want uint64
	}{{0, 0, 0}, {0, 2, 2}, {time.Second, 3, 0}, {9 * time.Second, 4, 0}, {10 * time.Second, 0, 0}, {11 * time.Second, 1, 8}, {12 * time.Second, 5, 0}, {time.Minute, 1, 6}} {
		if got := c.toSay(step.more, begin.Add(step.after)); got != step.want {
			t.Errorf("%d more after %s: the log reports %d, want %d", step.more, step.after, got, step.want)
		}
	}
}
