package fleet

import (
	"fmt"
	"math/rand/v2"
)

// Fleet is the models and events of a scenario.
type Fleet struct {
	Models  int
	Network Network
	Kind    Kind
	Spread  Spread
	Texts   []string `json:",omitempty"` // messages of KindText
}

// Spread is the distribution of events over the keys.
type Spread string

// The spreads.
const (
	Zipf   Spread = "zipf" // a few keys have most of the events
	Evenly Spread = "evenly"
)

// zipfSkew gives the first of 1,000 keys a sixth of the events, and the last key a thousandth of
// that.
const zipfSkew = 1.1

// Keys is the sequence of the events' keys.
type Keys struct {
	zipf *rand.Zipf
	even *rand.Rand
	n    int
}

// Keys starts the sequence, which is always the same.
func (f *Fleet) Keys() *Keys {
	r := rand.New(rand.NewPCG(7, uint64(f.Models)))
	k := &Keys{even: r, n: f.Models}
	if f.Spread == Zipf && f.Models > 1 {
		k.zipf = rand.NewZipf(r, zipfSkew, 1, uint64(f.Models-1))
	}
	return k
}

// Next returns the next event's key, by number.
func (k *Keys) Next() int {
	switch {
	case k.n == 1:
		return 0
	case k.zipf != nil:
		return int(k.zipf.Uint64())
	}
	return k.even.IntN(k.n)
}

// Key is the subject of a key's events.
func Key(n int) string { return fmt.Sprintf("bot-%d", n) }

// Model is the name of a key's model.
func Model(n int) string { return "load/" + Key(n) }

// Seed returns the seed of the weights of a key's version.
func Seed(key, version int) uint64 { return uint64(key)<<20 | uint64(version) }
