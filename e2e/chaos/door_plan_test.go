package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Numbers of processes in a round of the gateway.
const (
	gateways = 2
	senders  = 2
)

const redisName = "redis-0"

// The kinds of rounds of the gateway. In each kind except the storm some processes keep running, so
// that the judge can check more.
const (
	doorStorm   profile = "door storm"   // gateways, broker and Redis end, mostly by SIGKILL
	doorRedis   profile = "door redis"   // only Redis ends: nothing may be refused
	doorKill    profile = "door kill"    // gateways are killed: the others' answers must be right
	doorRestart profile = "door restart" // gateways end by SIGTERM, in turn: not one 5xx
)

// doorPlanOf returns a round's schedule, which depends only on the seed.
func doorPlanOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0xd008))
	p := plan{seed: seed, profile: []profile{doorStorm, doorRedis, doorStorm, doorKill, doorRestart}[seed%5], length: ms(r, 5000, 6500)}
	switch p.profile {
	case doorStorm:
		p.doorStormBlows(r)
	case doorRedis:
		for at := ms(r, 600, 1200); at < p.length; at += ms(r, 900, 2200) {
			p.blows = append(p.blows, blow{at, redisName, false, ms(r, 50, 1500)})
		}
	case doorKill:
		for at := ms(r, 600, 1200); at < p.length; at += ms(r, 500, 1100) {
			p.blows = append(p.blows, blow{at, pick(r, "gateway", gateways), false, ms(r, 50, 700)})
		}
	case doorRestart:
		for i, at := 0, ms(r, 600, 1000); at < p.length; at += ms(r, 1800, 2200) {
			p.blows = append(p.blows, blow{at, fmt.Sprintf("gateway-%d", i%gateways), true, ms(r, 1000, 1300)})
			i++
		}
	}
	slices.SortFunc(p.blows, func(a, b blow) int { return int(a.at - b.at) })
	return p
}

func (p *plan) doorStormBlows(r *rand.Rand) {
	p.blows = append(p.blows, blow{ms(r, 800, int(p.length.Milliseconds())-800), brokerName, false, ms(r, 50, 800)})
	for want := 6 + r.IntN(4); len(p.blows) < want; {
		target := pick(r, "gateway", gateways)
		switch r.IntN(4) {
		case 0:
			target = redisName
		case 1:
			target = pick(r, "sender", senders)
		}
		p.blows = append(p.blows, blow{ms(r, 300, int(p.length.Milliseconds())), target, r.IntN(4) == 0, ms(r, 50, 1200)})
	}
}

func TestDoorPlan(t *testing.T) {
	for seed := range uint64(100) {
		p := doorPlanOf(seed)
		if fmt.Sprint(p) != fmt.Sprint(doorPlanOf(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		if len(p.blows) < 2 {
			t.Errorf("seed %d: %d blows", seed, len(p.blows))
		}
		for _, b := range p.blows {
			if p.profile == doorRedis && b.target != redisName || p.profile != doorStorm && b.target == brokerName || b.polite != (p.profile == doorRestart) && p.profile != doorStorm {
				t.Errorf("seed %d, %s: %v", seed, p.profile, b)
			}
		}
	}
}
