package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The sizes of a round of scorers.
const (
	scorersAtOnce = 3
	scoredEvents  = 6000
	scoredKeys    = 40
	lateKeys      = 6 // keys whose model comes in the middle
	missingKeys   = 4 // keys whose model never comes
)

const (
	scorersKill    profile = "scorers kill"    // a scorer is killed every second
	scorersStorm   profile = "scorers storm"   // the broker and Redis are killed too
	scorersRestart profile = "scorers restart" // scorers end by SIGTERM, in turn
	scorersHang    profile = "scorers hang"    // another program leaves a transaction open on the output
	scorersEvict   profile = "scorers evict"   // memory for few models, a short hold while models load, and a store that is sometimes away
)

const hangerName = "hanger-0"

// scorersPlan is a round's schedule and its scorers' settings, which depend only on the seed.
type scorersPlan struct {
	plan
	events int
	memory int64         // memory for models
	hold   time.Duration // value of hold in the scorer's config
	batch  int
	pass   bool   // events without a model are passed on unchanged, else they become dead letters
	keep   int    // number of versions of a model that are kept
	broken bool   // some versions cannot be loaded
	away   []blow // outages of the object store
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

// config returns the config of a round's scorers.
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

// Kinds of published events.
const (
	wellFormed = iota
	unmapped   // the event lacks the model's input
	keyless
	otherType // a type that no scorer reads
)

// scoredKey returns the key of event n, and kindOf its kind.
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

// modelArrival returns when a key gets its model: from the beginning, late, or never.
func modelArrival(key string) (late, never bool) {
	var k int
	_, _ = fmt.Sscanf(key, "bot-%d", &k) // the key is always one of ours
	return k >= scoredKeys-lateKeys-missingKeys && k < scoredKeys-missingKeys, k >= scoredKeys-missingKeys
}
