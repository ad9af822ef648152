package seed

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"tidemill.dev"
)

// fate is the state in which the history of a key ends.
type fate string

const (
	fresh    fate = "fresh"
	stale    fate = "stale"    // its champion's run began more than 40 days ago
	refused  fate = "refused"  // its newest version was refused
	awaiting fate = "awaiting" // its newest version awaits a person
	failing  fate = "failing"  // its newest runs failed
	noModel  fate = "no model" // no run has made a version
	pinned   fate = "pinned"
	unserved fate = "unserved" // a scorer cannot load its champion
	drifting fate = "drifting" // a figure of its champion has drifted
	waiting  fate = "waiting"  // fresh, and a run waits
	rolled   fate = "rolled"   // fresh, after a rollback
	tried    fate = "tried"    // the trial of its newest version has ended
	onTrial  fate = "on trial" // its newest version is on trial
)

// Hostile are keys as a stranger may choose them. The champions of the first three are refused.
var Hostile = []string{ // read only
	`<script>alert(1)</script>`,
	`"><img src=x onerror=alert(1)>`,
	"bot-\u202Egpj.exe",
	"' OR 1=1 --",
	"{{.}} ${7*7} %00",
	" bot with   spaces ",
	"ключ-🤖-鍵",
	"javascript:alert(1)",
	"../../etc/passwd",
	strings.Repeat("long-", 200),
}

// Size is the number of things that an install is made with.
type Size struct {
	Keys    int // keys of the recipe intent, with the hostile ones
	Letters int // dead letters
}

// Full is the install that the tests show.
var Full = Size{Keys: 20_000, Letters: 2_000} // read only

// Small is an install that starts within a second.
var Small = Size{Keys: 40, Letters: 10} // read only

const (
	runsPerKey = 10
	churnKeys  = 40
	dataKeys   = 12
)

// keyPlan is what the history of one key shall be.
type keyPlan struct {
	recipe, key, model string // model is empty for a recipe of data
	fate               fate
	versions           int
	rollout            string // rollout in which its newest version was made; empty for none
	seed               uint64
}

// plans returns the keys of all recipes.
func plans(size Size) []keyPlan {
	r := rand.New(rand.NewPCG(20, 4))
	var all []keyPlan
	for i := range size.Keys {
		p := keyPlan{recipe: "intent", key: fmt.Sprintf("bot-%05d", i), fate: fateOf(r.IntN(1000)), versions: versionsOf(r), seed: r.Uint64()}
		p.model = "intent/" + p.key
		if i < len(Hostile) {
			p.key, p.model = Hostile[i], fmt.Sprint("intent/hostile-", i)
			p.fate = fresh
			if i < 3 {
				p.fate = refused
			}
		}
		if p.fate == tried && i < size.Keys/2 {
			p.fate = fresh // the first refused keys are refused by their gates
		}
		if p.fate == refused || p.fate == tried || p.fate == onTrial {
			p.versions = max(p.versions, 3) // one to roll back from, and one to roll back to
		}
		all = append(all, p)
	}
	for i := range churnKeys {
		key := fmt.Sprintf("%s-%d", []string{"eu-west", "eu-east", "us-west", "us-east", "apac"}[i%5], i/5+1)
		p := keyPlan{recipe: "churn", key: key, model: "churn/" + key, fate: fresh, versions: versionsOf(r), seed: r.Uint64()}
		if i%8 == 3 {
			p.fate = awaiting
		}
		if tidemill.TakesPart(p.recipe, p.key, rolledShare) {
			p.rollout = "churn/1"
		}
		all = append(all, p)
	}
	for i := range dataKeys {
		all = append(all, keyPlan{recipe: "events-clean", key: fmt.Sprint("source-", i+1), fate: fresh, seed: r.Uint64()})
	}
	return all
}

// fateOf divides a thousand keys among the fates.
func fateOf(n int) fate {
	for _, f := range []struct {
		fate fate
		of   int
	}{{stale, 30}, {refused, 15}, {awaiting, 5}, {failing, 10}, {noModel, 10}, {pinned, 2}, {unserved, 1}, {waiting, 3}, {rolled, 4}, {drifting, 5}, {tried, 3}, {onTrial, 2}} {
		if n < f.of {
			return f.fate
		}
		n -= f.of
	}
	return fresh
}

// versionsOf returns 2 to 10. Few is more likely than many.
func versionsOf(r *rand.Rand) int { return 2 + min(int(r.ExpFloat64()*2), 8) }

// age returns the time since the start of the champion's run.
func (f fate) age(r *rand.Rand) time.Duration {
	const day = 24 * time.Hour
	if f == stale {
		return 40*day + time.Duration(r.Float64()*160*float64(day))
	}
	return 10*time.Minute + min(time.Duration(r.ExpFloat64()*30*float64(time.Hour)), 20*day)
}
