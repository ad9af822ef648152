package broker

// watermark finds how far a partition may be committed while its events end in
// any order: up to the first that has not ended. It is pure; its partition's
// lock guards it.
type watermark struct {
	after []int64 // ring: the offset behind each event handed out and not yet passed
	ended []bool
	head  int // in the ring, of event number first
	n     int
	first uint64
	next  int64 // what to commit: everything below has ended
	read  int64 // how far the log has been read; past next by what was filtered out
}

// begin starts at the offset from which the partition is read.
func (w *watermark) begin(offset int64) {
	w.first += uint64(w.n) // numbers never repeat, so a late end is recognised
	w.head, w.n = 0, 0
	w.next, w.read = offset, offset
}

// add hands out an event and returns its number.
func (w *watermark) add(offset int64) uint64 {
	if w.n == len(w.after) {
		w.grow()
	}
	at := w.at(w.n)
	w.after[at], w.ended[at] = offset+1, false
	w.n++
	w.read = max(w.read, offset+1)
	return w.first + uint64(w.n) - 1
}

// at is where the i-th event stands in the ring, whose size is a power of two.
func (w *watermark) at(i int) int { return (w.head + i) & (len(w.after) - 1) }

func (w *watermark) grow() {
	size := max(64, 2*len(w.after))
	after, ended := make([]int64, size), make([]bool, size)
	for i := range w.n {
		at := w.at(i)
		after[i], ended[i] = w.after[at], w.ended[at]
	}
	w.after, w.ended, w.head = after, ended, 0
}

// skip says that the log has been read up to an offset and holds nothing more
// to hand out below it.
func (w *watermark) skip(offset int64) {
	w.read = max(w.read, offset)
	if w.n == 0 {
		w.next = w.read
	}
}

// end says that an event has ended, and tells whether that was news. A number
// from before begin is not: the partition was given up meanwhile.
func (w *watermark) end(number uint64) bool {
	i := int(number - w.first)
	if number < w.first || i >= w.n {
		return false
	}
	at := w.at(i)
	if w.ended[at] {
		return false
	}
	w.ended[at] = true
	for w.n > 0 && w.ended[w.head] {
		w.next = w.after[w.head]
		w.head = w.at(1)
		w.n--
		w.first++
	}
	if w.n == 0 {
		w.next = w.read
	}
	return true
}

// all tells whether every event from one number up to another has ended.
func (w *watermark) all(from, to uint64) bool {
	for number := max(from, w.first); number < to; number++ {
		if i := int(number - w.first); i >= w.n || !w.ended[w.at(i)] {
			return false
		}
	}
	return true
}

// open is how many events have been handed out and lie at or behind the
// watermark.
func (w *watermark) open() int { return w.n }
