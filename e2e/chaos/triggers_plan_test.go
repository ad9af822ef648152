package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The sizes of a round of triggers.
const (
	dispatchers = 3
	manyEvents  = 10_000
	manyKeys    = 307
)

const (
	triggersKill    profile = "triggers kill"    // a dispatcher is killed every second
	triggersStorm   profile = "triggers storm"   // the broker is killed too
	triggersRestart profile = "triggers restart" // dispatchers end by SIGTERM, in turn
)

// triggersPlan is a round's schedule and its triggers' settings, which depend only on the seed.
type triggersPlan struct {
	plan
	events  int
	timeout time.Duration // timeout of the ordered trigger: shorter or longer than the sink's sleep
}

func triggersPlanOf(seed uint64) triggersPlan {
	r := rand.New(rand.NewPCG(seed, 0x7219))
	p := triggersPlan{plan: plan{seed: seed, length: ms(r, 5200, 6200)}, events: manyEvents}
	p.profile = []profile{triggersKill, triggersStorm, triggersKill, triggersRestart, triggersStorm}[seed%5]
	p.timeout = []time.Duration{time.Second, 10 * time.Second}[r.IntN(2)]
	polite := p.profile == triggersRestart
	for at := ms(r, 600, 1200); at < p.length; at += ms(r, 800, 1200) {
		p.blows = append(p.blows, blow{at, pick(r, "dispatcher", dispatchers), polite, ms(r, 20, 300)})
	}
	if p.profile == triggersStorm {
		for at := ms(r, 900, 2500); at < p.length; at += ms(r, 2000, 5000) {
			p.blows = append(p.blows, blow{at, brokerName, false, ms(r, 50, 800)})
		}
	}
	slices.SortFunc(p.blows, func(a, b blow) int { return int(a.at - b.at) })
	return p
}

func TestTriggersPlan(t *testing.T) {
	for seed := range uint64(100) {
		p := triggersPlanOf(seed)
		if fmt.Sprint(p) != fmt.Sprint(triggersPlanOf(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		hits, brokers := 0, 0
		for _, b := range p.blows {
			switch {
			case b.target == brokerName:
				brokers++
			case strings.HasPrefix(b.target, "dispatcher"):
				hits++
			}
			if b.polite != (p.profile == triggersRestart) {
				t.Errorf("seed %d, %s: %v", seed, p.profile, b)
			}
		}
		if hits < 4 || (brokers > 0) != (p.profile == triggersStorm) {
			t.Errorf("seed %d, %s: %v", seed, p.profile, p.blows)
		}
	}
}

// keyOf returns an event's key. Some keys have more events than others.
func keyOf(n int64) string {
	k := n * 7919 % manyKeys
	if n%4 == 0 {
		k %= 30
	}
	return fmt.Sprint("key-", k)
}
