package score

import "sort"

// heldEntry is what is known of a parked event. There may be a million of them.
type heldEntry struct {
	at    int64  // on the parked partition; uncommitted until that is known
	from  int64  // on the input
	next  uint32 // how much further the key's next is; 0 if there is none
	what  uint32 // see identity
	state heldState
	copy  uint16 // how often the event had been parked before; see renew
}

const uncommitted = -1

type heldState uint8

const (
	heldWaiting heldState = iota
	heldTaken
	heldReturned // or nobody's
)

// heldLog has the entries in the order in which they were parked, which is that of
// their places. Their sequence numbers never change. It grows and shrinks by blocks,
// so that its memory is what it needs.
type heldLog struct {
	blocks [][]heldEntry
	first  uint64 // sequence number of the first entry
	begun  uint64 // of the first block's first
	behind uint64 // behind the last
}

const heldBlock = 1024

func (l *heldLog) len() int { return int(l.behind - l.first) }

func (l *heldLog) add(e heldEntry) (seq uint64) {
	n := len(l.blocks)
	if n == 0 || len(l.blocks[n-1]) == heldBlock {
		l.blocks = append(l.blocks, make([]heldEntry, 0, heldBlock))
		n++
	}
	l.blocks[n-1] = append(l.blocks[n-1], e)
	l.behind++
	return l.behind - 1
}

// of is the entry of a number that is in the log.
func (l *heldLog) of(seq uint64) *heldEntry {
	i := seq - l.begun
	return &l.blocks[i/heldBlock][i%heldBlock]
}

// drop takes the first entry away.
func (l *heldLog) drop() {
	if l.first++; l.first-l.begun == heldBlock {
		l.blocks[0] = nil
		l.blocks = l.blocks[1:]
		l.begun = l.first
	}
}

// find is the number of the entry at a place on the parked partition.
func (l *heldLog) find(at int64) (seq uint64, ok bool) {
	i := sort.Search(l.len(), func(i int) bool {
		e := l.of(l.first + uint64(i))
		return e.at == uncommitted || e.at >= at
	})
	seq = l.first + uint64(i)
	return seq, i < l.len() && l.of(seq).at == at
}
