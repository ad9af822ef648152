package repeats

import "slices"

// maxWaiting is how many marks of a stream wait for Redis: 1.5 MiB.
const maxWaiting = 1 << 16

// maxSpare is the room that is kept for the next marks; what an outage took
// beyond it is given back.
const maxSpare = 4096

// queue holds marks in the order they were made. Two slices take turns, so that
// none is made anew: one fills while a trip carries the other.
type queue struct {
	waiting, spare []mark
}

// add appends a mark. A full queue forgets its oldest quarter, because what is
// repeated is mostly young; it tells how many those were.
func (q *queue) add(m mark) (dropped int) {
	if len(q.waiting) >= maxWaiting {
		dropped = maxWaiting / 4
		q.waiting = slices.Delete(q.waiting, 0, dropped)
	}
	q.waiting = append(q.waiting, m)
	return dropped
}

// take hands out the oldest marks, until they are given to done or restore.
func (q *queue) take(most int) []mark {
	if len(q.waiting) <= most {
		taken := q.waiting
		q.waiting, q.spare = q.spare, nil
		return taken
	}
	taken := append(q.spare, q.waiting[:most]...)
	q.waiting, q.spare = slices.Delete(q.waiting, 0, most), nil
	return taken
}

// done gives back the room of marks that are in Redis.
func (q *queue) done(taken []mark) {
	if cap(taken) <= maxSpare {
		q.spare = taken[:0]
	}
}

// restore puts marks back before those that came later, and tells how many
// did not fit.
func (q *queue) restore(taken []mark) (dropped int) {
	all := append(taken, q.waiting...)
	if dropped = len(all) - maxWaiting; dropped > 0 {
		all = slices.Delete(all, 0, dropped)
	}
	q.waiting = all
	return max(dropped, 0)
}
