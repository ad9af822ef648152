package deliver

import "tidemill.dev/broker"

// shelf keeps what a read of the parked log brought along: a log is read in
// batches of thousands of records, and senders have room for some at a time.
// Without it each would be unpacked again and again. It is the loader's alone.
type shelf struct {
	held  map[spot]*parkedRecord
	order []spot // as they came
	bytes int
}

// spot is a record's place.
type spot struct {
	partition int32
	offset    int64
}

// parkedRecord is a record in memory of its own.
type parkedRecord struct {
	record record
	view   broker.View
	err    error
	bytes  int
}

const shelfBytes = 8 << 20

func newShelf() *shelf { return &shelf{held: map[spot]*parkedRecord{}} }

// take takes a record that is there.
func (s *shelf) take(at spot) *parkedRecord {
	r := s.held[at]
	if r != nil {
		delete(s.held, at)
		s.bytes -= r.bytes
	}
	return r
}

// put keeps a record. What came first goes first, if it becomes too much.
func (s *shelf) put(at spot, r *parkedRecord) {
	if s.held[at] != nil {
		return
	}
	s.held[at] = r
	s.order = append(s.order, at)
	s.bytes += r.bytes
	for s.bytes > shelfBytes || len(s.order) > 2*len(s.held)+64 {
		s.take(s.order[0])
		s.order = s.order[1:]
	}
}

// readRecord copies a record from the log.
func readRecord(in *broker.Incoming) *parkedRecord {
	r := &parkedRecord{err: in.Err}
	if r.err == nil {
		r.err = r.record.decode(recordOf(&in.View))
	}
	if r.err == nil {
		r.err = r.record.history()
	}
	r.view = in.View.Clone()
	if r.err == nil {
		r.err = undisguise(&r.view)
	}
	r.view.Foreign = strip(r.view.Foreign)
	r.bytes = viewSize(&r.view) + len(r.record.rest)
	return r
}
