package score

import (
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// found is what a partition's former owner has sent beyond the offset that it
// has committed: read back, so that it is not sent again.
//
// An output says its input's position, and its cause. Both must be the event's:
// a log that has lost its end to a crash gives its offsets to other events.
type found struct {
	prefix string
	causes map[int64]uint32 // by offset
	last   int64
	floor  int64 // what lies before it counts already
}

func newFound(prefix string) *found {
	return &found{prefix: prefix, causes: map[int64]uint32{}, last: -1}
}

// add reads an output of a scorer's, or an event that it has passed on, and tells
// which event it is of, if that is one of the partition's.
func (f *found) add(source string, v *broker.View) (offset int64, what uint32, mine bool) {
	at, from, id := v.ID, v.Source, v.ID
	if v.Source == source {
		from, _ = v.Attribute(tidemill.AttrCausationSource)
		id, _ = v.Attribute(tidemill.AttrCausationID)
	} else {
		at, _ = strings.CutPrefix(passedBy(v), source+"#")
	}
	text, mine := strings.CutPrefix(at, f.prefix)
	offset, err := strconv.ParseInt(text, 10, 64)
	if !mine || err != nil || offset < f.floor {
		return 0, 0, false
	}
	f.causes[offset] = identity(from, id)
	f.last = max(f.last, offset)
	return offset, f.causes[offset], true
}

// passedHeader is beside an event that went on as it came: who passed it on, and
// where it lay. It is no attribute, so the event is the same.
const passedHeader = "tidemill-passed"

func passedBy(v *broker.View) string {
	for _, h := range v.Foreign {
		if h.Key == passedHeader {
			return string(h.Value)
		}
	}
	return ""
}

// trim forgets what lies before an offset: it counts already.
func (f *found) trim(offset int64) {
	for at := range f.causes {
		if at < offset {
			delete(f.causes, at)
		}
	}
}

// has tells whether an event's output has been found.
func (f *found) has(v *broker.View, offset int64) bool {
	of, ok := f.causes[offset]
	return ok && of == identity(v.Source, v.ID)
}
