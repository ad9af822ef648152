package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// A stream is deleted and created again, twice, while a consumer without a group reads it. All events of the new streams
// come once, after an event that says so.
func TestAStreamIsCreatedAgainForAReader(t *testing.T) {
	for _, again := range []int{10, 90} { // shorter and longer than the stream before
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			h := newHostile(t, 1)
			c, err := h.b.Consumer(h.ctx(), ConsumerOptions{Streams: []string{"events"}})
			h.must(err)
			seen := map[string]bool{}
			read := func(want, wantCuts int) {
				t.Helper()
				for n, cuts := 0, map[int32]int{}; n < want || len(cuts) < wantCuts; {
					d, err := c.Poll(h.ctx())
					h.must(err)
					for i := range d.Events {
						e := &d.Events[i]
						if e.Err != nil {
							if cuts[d.Partition]++; !errors.Is(e.Err, ErrCut) || cuts[d.Partition] > 1 || d.Next() != 0 {
								t.Errorf("partition %d says %v, next %d", d.Partition, e.Err, d.Next())
							}
							continue
						}
						if n++; seen[e.ID] {
							t.Errorf("event %s comes twice", e.ID)
						}
						seen[strings.Clone(e.ID)] = true
					}
					d.Done()
				}
			}
			_, errs := h.publish(0, 40, ProducerOptions{})
			h.must(errors.Join(errs...))
			read(40, 0)
			for turn := range 2 {
				for n := range int32(2) {
					c.Pause("events", n)
				}
				h.again(1000*(turn+1), again)
				c.pauseWasLong()
				for n := range int32(2) {
					c.Resume("events", n)
				}
				read(again, 2)
			}
			h.must(c.Close(h.ctx()))
		})
	}
}
