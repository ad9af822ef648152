package infer

import "sync/atomic"

// sketch tells about how often something was asked for lately, in a fixed amount
// of memory: four counters of four bits for each, of which the smallest is least
// wrong, and before them a bit, so that what is asked for once takes no counter.
// All is halved when enough has been counted, so that what was is forgotten.
//
// The counters of a hash lie in one line of memory, and are added to without a
// lock: two who count at once lose nothing, and who counts while all is halved
// may be forgotten, which a sketch can bear.
type sketch struct {
	counters []atomic.Uint64 // sixteen in each; eight words are a line
	door     []atomic.Uint64
	added    atomic.Int64
	sample   atomic.Int64 // so many are counted between halvings
}

const (
	sketchLines = 4096 // 256 KiB; exact enough for some 50,000 models
	lineWords   = 8
	rows        = 4
	doorWords   = 4096 // 32 KiB
	most        = 15

	// perModel is how many uses are remembered for each model in memory. Fewer
	// forget what is asked for seldom; more are slow to see that something has
	// become unpopular.
	perModel   = 10
	leastModel = 512
)

func newSketch() *sketch {
	s := &sketch{counters: make([]atomic.Uint64, sketchLines*lineWords), door: make([]atomic.Uint64, doorWords)}
	s.hold(0)
	return s
}

// hold tells how many models there are in memory.
func (s *sketch) hold(models int) { s.sample.Store(int64(max(models, leastModel)) * perModel) }

// counter is where the counter of a hash is in a row: its word, and how far it is
// shifted there. A row has two words of a line.
func counter(h uint64, row int) (word int, shift uint) {
	line := int(h % sketchLines)
	bits := uint(h>>(32+row*8)) & 0xff
	return line*lineWords + row*2 + int(bits>>4&1), bits & 15 * 4
}

// at is the bit of a hash before the counters.
func at(h uint64) (word int, bit uint64) {
	h = mix(h)
	return int(h % doorWords), 1 << (h >> 58)
}

// add counts a use.
func (s *sketch) add(h uint64) {
	word, bit := at(h)
	if s.door[word].Load()&bit == 0 {
		s.door[word].Or(bit)
		s.counted()
		return
	}
	grown := false
	for row := range rows {
		word, shift := counter(h, row)
		grown = increment(&s.counters[word], shift) || grown
	}
	if grown { // what is at its most says nothing new, and must not make all others old
		s.counted()
	}
}

func increment(w *atomic.Uint64, shift uint) bool {
	for {
		was := w.Load()
		if was>>shift&most == most {
			return false
		}
		if w.CompareAndSwap(was, was+1<<shift) {
			return true
		}
	}
}

// uses is about how often it was, at most 16.
func (s *sketch) uses(h uint64) int {
	least := most
	for row := range rows {
		word, shift := counter(h, row)
		least = min(least, int(s.counters[word].Load()>>shift&most))
	}
	if word, bit := at(h); s.door[word].Load()&bit != 0 {
		least++
	}
	return least
}

func (s *sketch) counted() {
	// Who wins the exchange halves; whoever counts meanwhile goes on.
	if n, full := s.added.Add(1), s.sample.Load(); n >= full && s.added.CompareAndSwap(n, full/2) {
		s.age()
	}
}

// age halves all counters.
func (s *sketch) age() {
	const others = 0x7777777777777777
	for i := range s.counters {
		w := &s.counters[i]
		for was := w.Load(); was != 0 && !w.CompareAndSwap(was, was>>1&others); was = w.Load() {
		}
	}
	for i := range s.door {
		s.door[i].Store(0)
	}
}
