package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const controllers = 2

// The kinds of rounds of the clock.
const (
	clockStorm  profile = "clock storm"  // controllers, broker and Redis end, mostly by SIGKILL
	clockHammer profile = "clock hammer" // only the broker is killed, again and again: transactions may be torn
	clockKill   profile = "clock kill"   // controllers are killed; the broker stays up
	clockAlone  profile = "clock alone"  // no Redis: controllers take the clock from each other
)

// clockPlanOf returns a round's schedule, which depends only on the seed.
func clockPlanOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0xc10c))
	p := plan{seed: seed, profile: []profile{clockStorm, clockHammer, clockKill, clockAlone}[seed%4], length: ms(r, 4500, 5500)}
	switch p.profile {
	case clockStorm:
		p.clockBlows(r, 7, append(names("controller", controllers), redisName, brokerName))
	case clockHammer:
		for at := ms(r, 700, 1100); at < p.length; at += ms(r, 500, 1100) {
			p.blows = append(p.blows, blow{at, brokerName, false, ms(r, 10, 300)})
		}
	case clockKill, clockAlone:
		p.clockBlows(r, 7, names("controller", controllers))
	}
	slices.SortFunc(p.blows, func(a, b blow) int { return int(a.at - b.at) })
	return p
}

func (p *plan) clockBlows(r *rand.Rand, n int, targets []string) {
	for range n {
		p.blows = append(p.blows, blow{ms(r, 500, int(p.length.Milliseconds())), targets[r.IntN(len(targets))], r.IntN(4) == 0, ms(r, 50, 1000)})
	}
}

func TestClockPlan(t *testing.T) {
	for seed := range uint64(100) {
		p := clockPlanOf(seed)
		if fmt.Sprint(p) != fmt.Sprint(clockPlanOf(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		if len(p.blows) < 4 {
			t.Errorf("seed %d: %d blows", seed, len(p.blows))
		}
	}
}
