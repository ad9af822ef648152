package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Numbers of processes by role.
const (
	publishers = 2
	consumers  = 3
	processors = 2
)

const brokerName = "broker-0"

// profile is the kind of a round. Rounds with few disturbances give figures; rounds with many
// disturbances find faults.
type profile string

const (
	storm    profile = "storm"    // any process ends, the broker too, mostly by SIGKILL
	takeover profile = "takeover" // one consumer is killed; the broker stays up
	hammer   profile = "hammer"   // only the broker is killed, again and again
	calm     profile = "calm"     // consumers come and go by SIGTERM; the broker stays up
)

// blow ends a process, and starts it again after a while.
type blow struct {
	at     time.Duration
	target string
	polite bool // SIGTERM
	back   time.Duration
}

func (b blow) String() string {
	signal := "SIGKILL"
	if b.polite {
		signal = "SIGTERM"
	}
	return fmt.Sprintf("%5.2fs %s %s, back after %s", b.at.Seconds(), signal, b.target, b.back)
}

// plan is a round's schedule, which depends only on the seed.
type plan struct {
	seed    uint64
	profile profile
	length  time.Duration
	blows   []blow
}

// warmUp is the time in which groups form before the first blow.
const warmUp = 1500 * time.Millisecond

func planOf(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0x71de))
	p := plan{seed: seed, profile: []profile{storm, takeover, hammer, calm, storm, takeover, storm, calm}[seed%8]}
	switch p.profile {
	case storm:
		p.length = ms(r, 7000, 9000)
		p.stormBlows(r)
	case hammer:
		p.length = ms(r, 8500, 9500)
		for at := ms(r, 800, 1500); at < p.length; at += ms(r, 700, 1600) {
			p.blows = append(p.blows, blow{at, brokerName, false, ms(r, 10, 200)})
		}
	case takeover:
		p.length = 9500 * time.Millisecond
		p.blows = append(p.blows, blow{ms(r, 1800, 2400), pick(r, "consumer", consumers), false, ms(r, 100, 6000)})
		p.drawOtherBlows(r, 5)
	case calm:
		p.length = ms(r, 8000, 9000)
		for i := range 3 {
			at := warmUp + time.Duration(i)*2400*time.Millisecond
			p.blows = append(p.blows, blow{at + ms(r, 0, 300), pick(r, "consumer", consumers), true, ms(r, 900, 1400)})
		}
		p.drawOtherBlows(r, 3)
	}
	slices.SortFunc(p.blows, func(a, b blow) int { return int(a.at - b.at) })
	return p
}

// stormBlows draws 6 to 10 blows, of which one to three hit the broker. Sometimes the broker is hit
// again right after its start.
func (p *plan) stormBlows(r *rand.Rand) {
	for range 1 + r.IntN(2) {
		b := blow{ms(r, 800, int(p.length.Milliseconds())-500), brokerName, r.IntN(6) == 0, ms(r, 50, 1000)}
		p.blows = append(p.blows, b)
		if r.IntN(3) == 0 {
			p.blows = append(p.blows, blow{b.at + b.back + ms(r, 100, 700), brokerName, false, ms(r, 50, 300)})
		}
	}
	for want := 6 + r.IntN(5); len(p.blows) < want; {
		target := pick(r, "consumer", consumers)
		switch r.IntN(5) {
		case 0:
			target = pick(r, "publisher", publishers)
		case 1, 2:
			target = pick(r, "processor", processors)
		}
		p.blows = append(p.blows, blow{ms(r, 300, int(p.length.Milliseconds())), target, r.IntN(4) == 0, ms(r, 50, 1500)})
	}
}

// drawOtherBlows draws blows against neither the broker nor the consumers.
func (p *plan) drawOtherBlows(r *rand.Rand, n int) {
	for range n {
		target := pick(r, "processor", processors)
		if r.IntN(3) == 0 {
			target = pick(r, "publisher", publishers)
		}
		p.blows = append(p.blows, blow{ms(r, 300, int(p.length.Milliseconds())), target, false, ms(r, 50, 1500)})
	}
}

func pick(r *rand.Rand, role string, n int) string { return fmt.Sprintf("%s-%d", role, r.IntN(n)) }

func ms(r *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+r.IntN(to-from)) * time.Millisecond
}

func TestPlan(t *testing.T) {
	for seed := range uint64(200) {
		p := planOf(seed)
		if fmt.Sprint(p) != fmt.Sprint(planOf(seed)) {
			t.Fatalf("seed %d makes two plans", seed)
		}
		broker := slices.ContainsFunc(p.blows, func(b blow) bool { return b.target == brokerName })
		if broker != (p.profile == storm || p.profile == hammer) {
			t.Errorf("seed %d: %s, and the broker is hit: %v", seed, p.profile, broker)
		}
		if n := len(p.blows); n < 5 || n > 12 {
			t.Errorf("seed %d: %d blows", seed, n)
		}
		for _, b := range p.blows {
			if p.profile == takeover && b.polite && strings.HasPrefix(b.target, "consumer") {
				t.Errorf("seed %d: %v", seed, b)
			}
		}
	}
}
