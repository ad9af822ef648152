package infer

import "sync"

// garbage keeps the collector's allowance in proportion. Go lets garbage grow to
// as much as is alive, so that a gigabyte of weights would take two. But weights
// are plain numbers that the collector need not look into: they cost it nothing,
// so it may as well come as often as it would without them.
type garbage struct {
	set     func(percent int) int // nil leaves it alone
	percent int                   // as it was found

	lock sync.Mutex
	now  int
}

// slack is how much garbage may lie around however much is alive.
const slack = 256 << 20

func newGarbage(set func(int) int) *garbage {
	g := &garbage{set: set}
	if set == nil {
		return g
	}
	g.percent = set(100)
	g.now = g.percent
	if set(g.percent); g.percent < 0 {
		g.set = nil // somebody has switched it off, and means it
	}
	return g
}

// hold says how many bytes of models there are. They are counted once it is our turn:
// of two who come at once, the one that has counted first may be the last to say so.
func (g *garbage) hold(bytes func() int64) {
	if g.set == nil {
		return
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	// Each call stops the world for a moment, so small steps are not made.
	if want := percentFor(g.percent, bytes()); want < g.now*9/10 || want > g.now*11/10+1 {
		g.set(want)
		g.now = want
	}
}

// percentFor is what to set for some bytes of models.
func percentFor(percent int, bytes int64) int {
	return max(1, int(int64(percent)*slack/(slack+bytes)))
}

func (g *garbage) end() {
	if g.set != nil {
		g.set(g.percent)
	}
}
