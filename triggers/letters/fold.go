package letters

import (
	"time"
	"unique"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// fold is the dead letters less their receipts. It is pure: whoever folds the
// same events, in whatever order partitions come in, has the same list. A letter
// that comes twice is one, and of its receipts the first counts.
type fold struct {
	open     map[name]*entry
	resolved map[name]place // of each letter's receipt
	asked    map[name]early // acts that came before the letters they name
	counts   map[unique.Handle[string]]int
}

// place is where a receipt lies. Resolved letters are for ever, so it is all
// that is kept of one.
type place struct {
	offset    int64
	partition int32
}

type early struct {
	act string
	at  time.Time
}

func newFold() *fold {
	return &fold{open: map[name]*entry{}, resolved: map[name]place{}, asked: map[name]early{}, counts: map[unique.Handle[string]]int{}}
}

// letter folds a letter in. A repeat lies further on than the first and tells
// the same, so it changes nothing.
func (f *fold) letter(at broker.Position, written time.Time, v *broker.View, l *listed) {
	n := nameOf(v.ID)
	if _, over := f.resolved[n]; over || f.open[n] != nil {
		return
	}
	e := newEntry(at, written, v, l)
	if a, asked := f.asked[n]; asked {
		e.replay = unique.Make(a.act)
		delete(f.asked, n)
	}
	f.open[n] = e
	f.counts[e.trigger]++
}

// receipt folds a receipt in, also one that comes before its letter: they may
// lie on different partitions if the stream has grown between them.
func (f *fold) receipt(at broker.Position, r *Receipt) {
	n := nameOf(r.Letter)
	if _, over := f.resolved[n]; over {
		return
	}
	f.resolved[n] = place{at.Offset, at.Partition}
	delete(f.asked, n)
	if e := f.open[n]; e != nil {
		f.counts[e.trigger]--
		delete(f.open, n)
	}
}

// askedFor is how long an act waits for the letters it names. An act is written
// by one who has read the letters, so they are on their way at most.
const askedFor = time.Minute

// ask notes that an act asks to replay letters. Of those that are neither open
// nor resolved the letter itself is still to come.
func (f *fold) ask(act string, refs []tidemill.LetterRef, now time.Time) {
	for n, a := range f.asked {
		if now.Sub(a.at) > askedFor {
			delete(f.asked, n)
		}
	}
	for _, ref := range refs {
		n := nameOf(ref.ID)
		if e := f.open[n]; e != nil {
			if e.replay.Value() == "" {
				e.replay = unique.Make(act)
			}
			continue
		}
		if _, over := f.resolved[n]; !over {
			f.asked[n] = early{act, now}
		}
	}
}
