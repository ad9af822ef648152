package sim

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"tidemill.dev/e2e/sim/vnet"
)

// plan is everything that a seed decides before a world begins.
type plan struct {
	seed       uint64
	up         bool // one process with embedded servers; else a cluster
	gateways   int
	dispatch   int
	controls   int
	scorers    int
	observers  int // above 0 if the scorer has labels
	partitions int
	attempts   int           // attempts of a delivery
	ordered    bool          // key order of the trigger
	load       time.Duration // time in which events are published
	every      time.Duration // mean pause of a publisher between two events
	publishers int
	keys       int
	keyForm    string        // format of a key, of the publisher's number and the key's
	idForm     string        // format of an event's id, of the publisher's number and the event's
	slow       time.Duration // greatest delay of an ordinary message
	cutEvery   int           // one of so many messages ends its connection; 0 is none
	lateEvery  int           // one of so many messages comes up to a second late; 0 is none
	sick       int           // percentage of the subscriber's answers that are no success
	guests     bool          // a trigger comes and goes, and its stream gets partitions
	twice      bool          // some answers of the subscriber come twice
	pace       time.Duration // longest time between two beats of an attempt
	slots      int           // slots of the recipe's pool, in a world whose faults let the oracle count them; 0 is no limit
	focus      focus
	judging    judging
	faults     []fault
	bucket     bool // the store is a bucket of S3
	committers int  // people who commit data
}

// judging has the clauses of the recipe after its gate, as the config has them. Empty ones are missing.
type judging struct {
	trial, canary, rollout string
	share                  float64 // share of the canary
}

// focus is the part of Tidemill that has most of a world's load and faults. Rare faults need a part
// with much to do.
type focus struct {
	role                   string // most faults of one host go to a process of this role; empty is any
	orders, messages, bots int    // shares of the events
	stall                  string // stream of one more stall
}

var focuses = []focus{{"", 5, 3, 2, ""}, {"scorer", 1, 12, 3, "facts"}, {"dispatcher", 12, 1, 1, "dead-letters"}, {"controller", 2, 1, 5, "facts"}}

// fault is one act of the schedule.
type fault struct {
	at    time.Duration // since the begin of the load
	kind  string
	host  string        // for kill, loop, restart, stall, block and clock
	other string        // for block; for bucket the trouble; for recreate the stream; for stall the stream whose connections stand still, or empty for one of n connections
	lasts time.Duration // for block, stall, older, pause, clock, store and bucket; for upgrade the time between two processes
	n     int           // for kill and loop: messages until then; for cut and stall: one of n connections; for evict: one of n keys; for bucket: n of five requests or keys; for upgrade: the layout; for clock: milliseconds
}

// switches are the kinds of faults, and whether they are on by default. A kind is off while the
// product has a known fault that it finds.
var switches = map[string]bool{"kill": true, "restart": true, "cut": true, "block": true, "flush": true, "older": true, "config": true, "pause": true,
	"servers": true, "loop": true, "stall": true, "evict": true, "store": true, "bucket": true, "upgrade": true, "recreate": true, "weeks": true, "clock": false}

func (f fault) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %v %d", f.kind, f.host, f.other, f.lasts, f.n))
}

// random returns a generator of its own for each use, so that one more choice of one use does not
// change the others.
func random(seed uint64, use string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(use))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// chance decides by the seed and a name alone: the answer does not depend on what other goroutines
// asked before.
func chance(seed uint64, name string, number int) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, seed))
	h.Write(binary.LittleEndian.AppendUint64([]byte(name), uint64(number)))
	x := h.Sum64() // its low bits are weak
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

func newPlan(seed uint64) *plan {
	r := random(seed, "plan")
	between := func(least, most int) int { return least + r.IntN(most-least+1) }
	p := &plan{seed: seed, up: r.IntN(3) == 0, gateways: between(1, 2), dispatch: between(1, 3), controls: between(1, 2), scorers: between(1, 2),
		partitions: between(1, 3), attempts: between(2, 6), ordered: r.IntN(3) > 0, load: time.Duration(between(15, 45)) * time.Second,
		every: time.Duration(between(300, 3000)) * time.Millisecond, publishers: between(1, 4), keys: between(1, 6),
		slow: time.Duration(between(50, 2000)) * time.Microsecond}
	if r.IntN(2) == 0 {
		p.cutEvery = between(200, 5000)
	}
	if r.IntN(2) == 0 {
		p.lateEvery = between(100, 5000)
	}
	if r.IntN(2) == 0 {
		p.sick = between(1, 40)
	}
	p.pace = time.Duration(between(500, 10_000)) * time.Millisecond
	p.focus = focuses[r.IntN(len(focuses))]
	if seed%5 == 2 { // the other worlds stay as they were, because some of their seeds find known faults
		p.observers, p.focus = between(1, 2), focus{"observer", 1, 12, 3, "outcomes"}
	}
	p.keyForm, p.idForm = "bot-%d-%d", "%d-%d"
	if seed%9 == 4 { // every character that the name of a model may have, in the longest names; and odd ids
		p.keyForm, p.idForm = "b/%d@%d+=:._-"+strings.Repeat("Z", 150), `%d-%d/?#<&>'{}|\^~;,`+"`"
	}
	p.judge(random(seed, "judging"))
	switch p.focus.role {
	case "observer":
		p.partitions, p.keys, p.every = between(1, 3), between(1, 3), time.Duration(between(50, 400))*time.Millisecond
		if p.judging != (judging{}) { // a model needs several versions and many labels
			p.keys, p.publishers, p.every, p.load = 1, 1+p.publishers%3, min(p.every, 200*time.Millisecond), p.load+20*time.Second
		}
	case "scorer":
		p.scorers, p.partitions, p.keys, p.every = between(2, 3), between(2, 4), between(1, 3), time.Duration(between(50, 400))*time.Millisecond
	case "dispatcher":
		p.dispatch, p.sick, p.keys, p.every = between(2, 3), between(10, 50), between(1, 3), time.Duration(between(50, 500))*time.Millisecond
	case "controller":
		p.controls, p.every = 2, time.Duration(between(200, 1500))*time.Millisecond
	}
	if p.judging.rollout != "" {
		p.every = time.Duration(between(600, 2000)) * time.Millisecond
	}
	for range between(2, 9) {
		p.add(r, p.newFault(r, drawn[r.IntN(len(drawn))]))
	}
	if !p.up && p.focus.role != "" {
		f := p.newFault(r, "stall")
		f.other, f.lasts = p.focus.stall, f.lasts+8*time.Second
		p.add(r, f)
	}
	p.planBucket(random(seed, "bucket"))
	p.jumpClocks(random(seed, "clock"))
	p.upgrade(random(seed, "upgrade"))
	p.recreate(random(seed, "recreate"))
	if !slices.Contains(kept, seed) { // those worlds stay as they were when they found a fault
		p.twice = random(seed, "twice").IntN(3) == 0
		p.sleep(random(seed, "weeks"))
		p.welcome(random(seed, "guests"))
	}
	for i := range p.faults {
		if f := &p.faults[i]; p.judging.rollout != "" && !p.up {
			f.lasts %= configSkew - time.Second // a process that is cut off for longer may begin runs in the way that it knows
		}
	}
	return p
}

// jumpClocks plans jumps of up to two seconds, a minute or ten minutes, forward or back. Each ends with a jump to the right time.
// An observer decides by its clock whether a label came in time, so observers keep the right time.
func (p *plan) jumpClocks(r *rand.Rand) {
	for range 1 + r.IntN(4) {
		f := p.newFault(r, "clock")
		most := []int{2_000, 60_000, 600_000}[r.IntN(3)]
		if f.n = r.IntN(2*most) - most; p.observers == 0 || !p.up && !strings.HasPrefix(f.host, "observer") {
			p.add(r, f)
		}
	}
}

// clocksDiffer returns how much two clocks may differ.
func (p *plan) clocksDiffer() (most time.Duration) {
	for _, f := range p.faults {
		if f.kind == "clock" {
			most += time.Duration(max(f.n, -f.n)) * time.Millisecond
		}
	}
	return most
}

// judge plans trials, canaries and rollouts. Half of the rollouts are in a cluster, with two controllers.
func (p *plan) judge(r *rand.Rand) {
	between := func(least, most int) int { return least + r.IntN(most-least+1) }
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	kind := r.IntN(4)
	if p.observers > 0 && kind%2 > 0 {
		p.judging.trial = fmt.Sprintf("{last: %ds, until: %ds, atLeast: %d, alpha: 0.%d, pass: [%s], refuse: [%s]}", between(5, 60), between(10, 40), between(1, 15), between(1, 4),
			one("stream.lead.low > 0", "stream.lead.value > 0", "stream.lead.low > -0.4", "stream.errors == 0, stream.disagree < 0.9"), one("stream.lead.high < 0", "stream.lead.value < 0", "stream.disagree > 0.5"))
	}
	if p.observers > 0 && kind > 1 {
		share := between(10, 60)
		p.judging.share = float64(share) / 100
		p.judging.canary = fmt.Sprintf("{share: %d%%, by: data.user, hold: %ds, least: %d, until: %ds}", share, between(1, 6), between(0, 8), between(10, 40))
	}
	if p.seed%10 != 6 {
		return
	}
	p.up, p.focus = random(p.seed, "cluster of a rollout").IntN(2) == 0, focus{"controller", 1, 1, 8, "commands"}
	p.keys, p.publishers, p.load = between(4, 10), between(2, 3), time.Duration(between(25, 60))*time.Second
	change := p.load / 3
	p.judging.rollout = fmt.Sprintf("{keys: [%d%%, 100%%], hold: %ds, stop: %s}", between(20, 90), between(2, 10), one("fleet.failed > 0.95", "fleet.promoted > 0", "fleet.promoted > 1", "fleet.runs > 3"))
	p.add(r, fault{at: change, kind: "config"})
	if r.IntN(3) == 0 {
		p.add(r, fault{at: change + time.Duration(r.Int64N(int64(p.load-change))), kind: "config"})
	}
}

// add adds a fault whose kind is on. A process that was stalled may know less than another whose work
// it takes over, so such another process is restarted.
func (p *plan) add(r *rand.Rand, f fault) {
	if isOn(f.kind) {
		p.faults = append(p.faults, f)
	}
	if next, ok := p.neighbour(f.host); f.kind == "stall" && ok && isOn("restart") {
		p.faults = append(p.faults, fault{at: f.at + time.Duration(r.Int64N(int64(f.lasts))), kind: "restart", host: next})
	}
}

// stallable are streams that a stall may concern. The one that most depends on is there twice.
var stallable = []string{"facts", "facts", "events", "messages", "scored", "dead-letters"}

// carried are the streams by which a stall finds connections: these, and those that only a focus names.
var carried = append([]string{"outcomes", "commands"}, stallable...)

// drawn has each kind as often as it is to be drawn. The last one is no fault: without it all seeds would mean something else.
var drawn = []string{"kill", "kill", "kill", "kill", "loop", "loop", "restart", "restart", "stall", "stall", "stall", "cut", "cut", "block", "block", "block", "flush", "older", "config", "pause", "servers", "evict", "store", ""}

func (p *plan) newFault(r *rand.Rand, kind string) fault {
	f := fault{at: time.Duration(r.Int64N(int64(p.load))), kind: kind, host: p.aim(r)}
	f.n, f.lasts = r.IntN(400), time.Duration(200+r.IntN(25_000))*time.Millisecond
	switch f.kind {
	case "cut", "evict":
		f.n = 1 + f.n%4
	case "stall":
		f.n = 1 + f.n%4
		if r.IntN(4) > 0 {
			f.other = stallable[r.IntN(len(stallable))]
		}
	case "block":
		if r.IntN(4) == 0 {
			f.lasts *= 4
		}
		f.other = []string{serversHost, serversHost, serversHost, subscribersHost, agentsHost, publishersHost}[r.IntN(6)]
		if p.up && f.other == serversHost {
			f.other = f.host
		}
		if r.IntN(2) == 0 {
			f.host, f.other = f.other, f.host
		}
	}
	return f
}

// aim returns the host of a fault.
func (p *plan) aim(r *rand.Rand) string {
	hosts := p.hosts()
	if r.IntN(3) > 0 {
		if aimed := slices.DeleteFunc(slices.Clone(hosts), func(name string) bool { return !strings.HasPrefix(name, p.focus.role) }); len(aimed) > 0 {
			hosts = aimed
		}
	}
	return hosts[r.IntN(len(hosts))]
}

// neighbour returns another process with the role of a host.
func (p *plan) neighbour(host string) (string, bool) {
	hosts := p.hosts()
	i := slices.IndexFunc(hosts, func(name string) bool {
		return name != host && strings.TrimRight(name, "0123456789") == strings.TrimRight(host, "0123456789")
	})
	if i < 0 {
		return "", false
	}
	return hosts[i], true
}

// hosts returns the names of the processes of Tidemill.
func (p *plan) hosts() (all []string) {
	if p.up {
		return []string{"up"}
	}
	add := func(role string, n int) {
		for i := range n {
			all = append(all, fmt.Sprint(role, i+1))
		}
	}
	add("gateway", p.gateways)
	add("dispatcher", p.dispatch)
	add("controller", p.controls)
	add("scorer", p.scorers)
	add("observer", p.observers)
	return all
}

// message decides the fate of a message.
func (p *plan) message(m *vnet.Message) vnet.Fault {
	x := chance(p.seed, m.Conn+m.From, m.Number)
	f := vnet.Fault{Delay: 20*time.Microsecond + time.Duration(x%uint64(p.slow))}
	x = chance(p.seed+1, m.Conn+m.From, m.Number)
	if p.lateEvery > 0 && x%uint64(p.lateEvery) == 0 {
		f.Delay += time.Duration(x>>32%1000) * time.Millisecond
	}
	if p.cutEvery > 0 && x>>8%uint64(p.cutEvery) == 0 {
		f.Cut = vnet.CutBefore + vnet.Cut(x>>40%2)
	}
	return f
}

// config returns the text of the config. A generation is a change that has no effect on what is
// promised.
func (p *plan) config(subscriber string, generation int) string {
	order := "none"
	if p.ordered {
		order = "key"
	}
	extra := ""
	if generation%2 == 1 {
		extra = "  unused: {partitions: 1}\n"
	}
	labels := ""
	if p.observers > 0 {
		labels = fmt.Sprintf(", labels: {from: events, types: [verdict], match: {id: data.of, source: data.from}, truth: data.truth, wait: %v, missing: none}", labelWait)
	}
	way, after, pools := "", "", ""
	if p.slots > 0 {
		way, pools = ", pool: few", fmt.Sprintf("pools:\n  few: {slots: %d}\n", p.slots)
	}
	if p.judging.rollout != "" {
		way += fmt.Sprintf(", env: {WAY: \"%d\"}", generation)
	}
	for _, one := range [][2]string{{"trial", p.judging.trial}, {"canary", p.judging.canary}, {"rollout", p.judging.rollout}} {
		if one[1] != "" {
			after += "\n    " + one[0] + ": " + one[1]
		}
	}
	data := [2]string{}
	if p.committers > 0 {
		data = [...]string{fmt.Sprintf(dataTrigger, subscriber), dataRecipe}
	}
	side, guest := p.guestConfig(subscriber, generation)
	extra, data[0] = extra+side, data[0]+guest
	return fmt.Sprintf(`version: 1
streams:
  events: {retention: 60d}
  messages: {partitions: %[1]d, retention: 60d, types: [message]}
  scored: {partitions: %[1]d, retention: 60d}
%[2]sschedules:
  often: {cron: "* * * * *"}
triggers:
  tell:
    when: {type: order-paid}
    to: {url: "http://%[3]s/tell"}
    delivery: {replies: ignore, order: %[4]s, attempts: %[5]d, timeout: %[6]ds}
  tick:
    when: {type: schedule-tick}
    to: {url: "http://%[3]s/tick"}
    delivery: {replies: ignore}
%[10]srecipes:
  intent:
    when: {type: bot-created}
    run: {dir: /, command: [train], attempts: 5%[8]s}
    makes: {model: "intent/{key}"}%[9]s
%[11]sscorers:
  intents: {from: messages, to: scored, model: "intent/{key}"%[7]s}
%[12]s`, p.partitions, extra, subscriber, order, p.attempts, 2+generation%3, labels, way, after, data[0], data[1], pools)
}

// labelWait is how long answers wait for their labels.
const labelWait = 20 * time.Second
