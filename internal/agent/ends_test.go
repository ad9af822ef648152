package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// What was made may be brought away for as long as the command may have run, however
// long that is beyond the time to tell of it; and who gives an agent Longest ends none
// that still does.
func TestWhatWasMadeHasTimeToArrive(t *testing.T) {
	const deadline, grace = 24 * time.Hour, time.Minute
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		e := newEnds(t.Context())
		defer e.close()
		time.Sleep(deadline + grace) // the command
		e.over(deadline)
		time.Sleep(deadline)
		synctest.Wait()
		if e.save.Err() != nil || e.last.Err() != nil {
			t.Error("what was made cannot be brought away any more")
		}
		<-e.save.Done()
		if e.last.Err() != nil {
			t.Error("and nobody can be told so")
		}
		<-e.last.Done()
		if took := time.Since(begun); took != Longest(deadline, grace) {
			t.Errorf("it may take %v, and is given %v", took, Longest(deadline, grace))
		}
	})
}

// The last word alone has an hour, whatever the deadline was.
func TestTheLastWordHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t.Context())
		defer e.close()
		e.over(24 * time.Hour)
		e.over(0) // nothing was made
		begun := time.Now()
		<-e.last.Done()
		if took := time.Since(begun); took != lastWithin {
			t.Errorf("it has %v", took)
		}
	})
}
