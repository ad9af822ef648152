package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// How much there is in a round of scorers.
const (
	scorersAtOnce = 3
	scoredEvents  = 6000
	scoredKeys    = 40
	lateKeys      = 6 // whose model comes in the middle
	missingKeys   = 4 // whose model never does
)

const (
	scorersKill    profile = "scorers kill"    // a scorer by SIGKILL every second
	scorersStorm   profile = "scorers storm"   // and the broker and Redis too
	scorersRestart profile = "scorers restart" // scorers by SIGTERM, in turn
	scorersHang    profile = "scorers hang"    // and a stranger's transaction is left open on the output
	scorersEvict   profile = "scorers evict"   // room for few models, no patience for those that are loaded, and a store that is away now and then
)

const hangerName = "hanger-0"

// scorersPlan is a round's schedule and what its scorers are given. It depends on
// the seed alone.
type scorersPlan struct {
	plan
	events int
	memory int64         // for models
	hold   time.Duration // of the config
	batch  int
	pass   bool   // what has no model goes on as it came, else it becomes a dead letter
	keep   int    // versions of a model
	broken bool   // some versions cannot be loaded
	away   []blow // when the object store is, and for how long
}

func scorersPlanOf(seed uint64) scorersPlan {
	r := rand.New(rand.NewPCG(seed, 0x5c02))
	p := scorersPlan{plan: plan{seed: seed, length: ms(r, 5000, 6000)}, events: scoredEvents, memory: 1 << 20, hold: 20 * time.Millisecond, keep: 10_000}
	p.profile = []profile{scorersStorm, scorersKill, scorersEvict, scorersStorm, scorersRestart, scorersHang}[seed%6]
	p.batch = []int{16, 256, 4096}[r.IntN(3)]
	p.pass, p.broken = r.IntN(2) == 0, r.IntN(3) > 0
	polite := p.profile == scorersRestart
	for at := ms(r, 800, 1400); at < p.length; at += ms(r, 900, 1300) {
		p.blows = append(p.blows, blow{at, pick(r, "scorer", scorersAtOnce), polite, ms(r, 20, 300)})
	}
	switch p.profile {
	case scorersEvict:
		p.memory, p.hold = 8<<10, time.Millisecond
		for at := ms(r, 500, 1500); at < p.length; at += ms(r, 1500, 2500) {
			p.away = append(p.away, blow{at, storeFolder, true, ms(r, 100, 1000)})
		}
	case scorersHang:
		p.blows = append(p.blows, blow{ms(r, 1500, 3000), hangerName, false, 10 * time.Millisecond})
	case scorersStorm:
		for at := ms(r, 900, 2000); at < p.length; at += ms(r, 2000, 4000) {
			p.blows = append(p.blows, blow{at, brokerName, false, ms(r, 50, 600)})
		}
		for at := ms(r, 1500, 2500); at < p.length; at += ms(r, 1500, 3000) {
			p.blows = append(p.blows, blow{at, redisName, false, ms(r, 50, 600)})
		}
	}
	slices.SortFunc(p.blows, func(a, b blow) int { return int(a.at - b.at) })
	return p
}

func TestScorersPlan(t *testing.T) {
	for seed := range uint64(100) {
		p := scorersPlanOf(seed)
		if fmt.Sprint(p) != fmt.Sprint(scorersPlanOf(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		hits := map[string]int{}
		for _, b := range p.blows {
			hits[strings.Split(b.target, "-")[0]]++
			if b.polite != (p.profile == scorersRestart) {
				t.Errorf("seed %d, %s: %v", seed, p.profile, b)
			}
		}
		storm := p.profile == scorersStorm
		if hits["scorer"] < 3 || (hits["broker"] > 0) != storm || (hits["redis"] > 0) != storm || (hits["hanger"] > 0) != (p.profile == scorersHang) {
			t.Errorf("seed %d, %s: %v", seed, p.profile, p.blows)
		}
	}
}

// config is the file that the scorers of a round read.
func (p *scorersPlan) config() string {
	noModel := "dead-letter"
	if p.pass {
		noModel = "pass"
	}
	return fmt.Sprintf(`version: 1
name: chaos
streams:
  in: {partitions: %d}
  out: {partitions: %d}
scorers:
  bots: {from: in, to: out, types: [%s], model: "intent/{key}", map: {x: data.x}, noModel: %s, hold: %s, batch: {events: %d}}
`, partitions, partitions, typeEvent, noModel, p.hold, p.batch)
}

// Kinds of what is published.
const (
	wellFormed = iota
	unmapped   // it lacks what the model asks for
	keyless
	otherType // which no scorer asks for
)

// scoredKey is the key of event n, and kindOf what it is.
func scoredKey(n int) string {
	k := n * 7919 % scoredKeys
	if n%3 == 0 {
		k %= 7
	}
	return fmt.Sprint("bot-", k)
}

func kindOf(n int) int {
	switch {
	case n%97 == 5:
		return unmapped
	case n%193 == 7:
		return keyless
	case n%89 == 11:
		return otherType
	}
	return wellFormed
}

// modelled tells when a key has a model: from the beginning, late, or never.
func modelled(key string) (late, never bool) {
	var k int
	_, _ = fmt.Sscanf(key, "bot-%d", &k) // it is one of ours
	return k >= scoredKeys-lateKeys-missingKeys && k < scoredKeys-missingKeys, k >= scoredKeys-missingKeys
}
