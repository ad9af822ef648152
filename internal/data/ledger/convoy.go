package ledger

import (
	"maps"
	"math/rand/v2"
	"slices"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const (
	// farBehind makes it worth while to catch up with few partitions at a time:
	// then their makings stay on the shelf until they are done with, and a batch
	// has many facts of each.
	farBehind = 50_000

	// keptNear and keptFar are how many makings of a partition are kept at least.
	keptNear, keptFar = 256, 4096
)

// convoy lets few partitions be read at a time, until they have come to their
// ends. An empty one lets all.
type convoy struct {
	c       *broker.Consumer
	active  map[int32]bool
	waiting []int32
	ends    map[int32]int64
}

// convoy pauses all partitions but a few if there is far to go.
func (l *Ledger) convoy(c *broker.Consumer) *convoy {
	behind, ends := l.progress.distance()
	v := &convoy{c: c, ends: ends, active: map[int32]bool{}}
	if l.kept, l.far = keptNear, nil; behind < l.o.far {
		return v
	}
	l.kept, l.far = keptFar, ends
	for _, partition := range from(rand.Int(), slices.Sorted(maps.Keys(ends))) {
		if len(v.active) < mostLanes {
			v.active[partition] = true
			continue
		}
		c.Pause(tidemill.StreamFacts, partition)
		v.waiting = append(v.waiting, partition)
	}
	return v
}

// from begins a list elsewhere: several processes that find Redis empty at the same
// time then have most of the work of one another.
func from(place int, all []int32) []int32 {
	at := place % max(len(all), 1)
	return slices.Concat(all[at:], all[:at])
}

// relieve lets the next partition be read for each that has come to its end, and
// one more if nothing comes of any: there may be nothing but markers left. It
// tells of those that are done.
func (v *convoy) relieve(reached func(int32) int64, idle bool) (done []int32) {
	for partition := range v.active {
		if reached(partition) >= v.ends[partition] {
			delete(v.active, partition)
			done = append(done, partition)
		}
	}
	for len(v.waiting) > 0 && (len(v.active) < mostLanes || idle) {
		next := v.waiting[0]
		v.waiting, idle = v.waiting[1:], false
		v.active[next] = true
		v.c.Resume(tidemill.StreamFacts, next)
	}
	return done
}
