package repeats

import "time"

// known is what a gateway remembers of one stream. New marks go to the young
// generation. When that has half of the limit, or is older than the window, it
// takes the place of the old one, which is forgotten whole: that is cheap where
// taking out single ids is not, and two lookups find any. Since the time stands
// beside each digest, the window is exact and is the asker's own.
type known struct {
	young, old generation
	forgotten  int64 // no mark up to then counts
}

type generation struct {
	marks  map[digest]int64 // when each was made
	born   int64
	oldest int64 // of the marks
}

// seen says whether the event was marked within the window.
func (k *known) seen(d digest, now time.Time, window time.Duration) bool {
	at, here := k.young.marks[d]
	if !here {
		at, here = k.old.marks[d]
	}
	return here && at > k.forgotten && now.UnixMilli()-at < window.Milliseconds()
}

// add takes a mark in that was made now, and so is the latest of its event.
func (k *known) add(m mark, now time.Time, window time.Duration, limit int) {
	k.turn(now.UnixMilli(), window.Milliseconds(), limit)
	k.young.marks[m.digest] = m.at
	k.young.oldest = min(m.at, k.young.oldest)
}

// learn takes in what another has marked. Of two marks of an event the later
// one counts.
func (k *known) learn(m mark, now time.Time, window time.Duration, limit int) {
	if at, here := k.young.marks[m.digest]; !here || at < m.at {
		k.add(m, now, window, limit)
	}
}

// turn makes the young generation the old one if it is full, or so old that all
// that is in the old one has outlived its window. A new map grows a little at a
// time; one with room for all, or one that is cleared, would hold everybody up.
func (k *known) turn(now, window int64, limit int) {
	if y := &k.young; y.marks == nil || len(y.marks) >= max(1, limit/2) || now-y.born >= window {
		k.old = *y
		*y = generation{marks: map[digest]int64{}, born: now, oldest: now}
	}
}

// since is when the oldest mark was made that is remembered.
func (k *known) since() int64 {
	if k.old.marks != nil {
		return min(k.old.oldest, k.young.oldest)
	}
	return k.young.oldest
}
