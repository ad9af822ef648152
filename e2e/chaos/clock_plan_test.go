package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

const controllers = 2

// What a round of the clock is about.
const (
	clockStorm  profile = "clock storm"  // controllers, broker and Redis, SIGKILL mostly
	clockHammer profile = "clock hammer" // the broker alone, by SIGKILL again and again: transactions may tear
	clockKill   profile = "clock kill"   // controllers by SIGKILL; the broker stands
	clockAlone  profile = "clock alone"  // no Redis at all: controllers take the clock from each other
)

// clockPlanOf is a round's schedule. It depends on the seed alone.
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
