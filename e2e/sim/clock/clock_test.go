package clock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A clock jumps for the goroutines of its process alone, and its monotonic clock goes on.
func TestAClockJumpsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var both sync.WaitGroup
		in := func(process string, ahead time.Duration) {
			both.Go(func() {
				c, before := Enter(process), Now()
				c.Set(ahead)
				both.Go(func() {
					time.Sleep(time.Second)
					if got := Now().Round(0).Sub(begin.Round(0)); got != time.Second+ahead {
						t.Errorf("%s: the clock shows %v", process, got)
					}
					if got := Since(before); got != time.Second {
						t.Errorf("%s: %v have passed", process, got)
					}
					if parsed := begin.Round(0); Since(parsed) != time.Second+ahead || Until(parsed) != -time.Second-ahead {
						t.Errorf("%s: %v since the begin", process, Since(parsed))
					}
					both.Add(1)
					AfterFunc(time.Second, func() {
						defer both.Done()
						if got := Now().Round(0).Sub(begin.Round(0)); got != 2*time.Second+ahead {
							t.Errorf("%s: the clock of a timer shows %v", process, got)
						}
					})
				})
			})
		}
		in("a", time.Hour)
		in("b", -3*time.Minute)
		in("c", 0)
		both.Wait()
	})
}
